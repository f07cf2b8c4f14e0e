/* Memory: checked sizes, an allocator that tests can make fail, and arenas (one per lifetime: model, session, request). */
#ifndef LM_BASE_MEM_H
#define LM_BASE_MEM_H
#include <stdarg.h>
#include "base/status.h"

/* a*b and a+b, false on overflow (*out untouched then) */
static inline bool lm_mul(uint64_t a, uint64_t b, uint64_t *out) {
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}
static inline bool lm_add(uint64_t a, uint64_t b, uint64_t *out) {
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

/* malloc/calloc/realloc/free that a test can make fail: after lm_alloc_fail_after(n) the n-th following call returns NULL
 * (n = 0 turns it off). Process-wide; only tests set it. lm_calloc checks n*size. lm_free also takes what another library malloc'd. */
void *lm_malloc(size_t n);
void *lm_calloc(size_t n, size_t size);
void *lm_realloc(void *p, size_t n);
void lm_free(void *p);
char *lm_strdup(const char *s);
/* exactly n bytes (NULs too) and a NUL after them; the arena's the same */
char *lm_strndup(const char *s, size_t n);
void lm_alloc_fail_after(uint64_t n);
/* For messages: bytes that this process could still take, of the system's and of its own limit on addresses; UINT64_MAX: not known. */
uint64_t lm_memory_available(void);
uint64_t lm_alloc_count(void); /* calls so far that allocated, lm_pages_alloc's included; process-wide */

/* 64-byte aligned, zeroed on demand by the kernel; `huge` asks for transparent huge pages. NULL when out of memory.
 * Free with lm_pages_free and the same size. */
void *lm_pages_alloc(size_t bytes, bool huge);
void lm_pages_free(void *p, size_t bytes);
void lm_pages_give_back(void *p, size_t bytes); /* the whole pages in it go back to the system, and are zero when touched again */

/* Huge pages shared by blocks that live about as long. Alone, a block has small pages, which are read more slowly and cost a fault each,
 * past its last whole huge one, or throughout where it is small. A slab lives until its last block is freed and its maker has left it.
 * A block is zeroed and 64-byte aligned, and takes whole lines of 64 bytes. Blocks are taken by one thread at a time, and freed by any. */
typedef struct lm_slab lm_slab;
lm_slab *lm_slab_create(size_t bytes);                 /* NULL when out of memory */
void *lm_slab_take(lm_slab *s, size_t bytes);          /* NULL when there is no room left in it */
void lm_slab_free(lm_slab *s, void *p, size_t bytes);  /* whole pages go back to the system at once */
void lm_slab_leave(lm_slab **at);                      /* by its maker; *at is NULL afterwards, and may be before */
/* A block of any size, *of its slab: from *at (NULL at first), or from a new one that takes its place; a large one has a slab of its own.
 * NULL when out of memory, and then lm_slab_asks says for how much was asked. */
void *lm_slab_alloc(lm_slab **at, size_t bytes, lm_slab **of);
size_t lm_slab_asks(size_t bytes);

/* A growing arena: allocations live until the arena is destroyed. Not thread-safe. */
typedef struct lm_arena lm_arena;
lm_arena *lm_arena_create(void);
void lm_arena_destroy(lm_arena *a);
void *lm_arena_alloc(lm_arena *a, size_t bytes);             /* 64-byte aligned, zeroed; NULL when out of memory */
void *lm_arena_calloc(lm_arena *a, size_t n, size_t size);   /* the same, n*size checked */
char *lm_arena_strndup(lm_arena *a, const char *s, size_t n);
char *lm_arena_printf(lm_arena *a, const char *fmt, ...) LM_PRINTF(2, 3);
char *lm_arena_vprintf(lm_arena *a, const char *fmt, va_list ap);
size_t lm_arena_bytes(const lm_arena *a);                    /* bytes held */
#endif
