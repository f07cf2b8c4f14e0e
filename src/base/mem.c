/* Allocation, pages and arenas: the only file that calls malloc and friends. */
#include "base/mem.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static _Atomic uint64_t fail_after; /* calls left until the one that fails; 0: off */
static _Atomic uint64_t count;

void lm_alloc_fail_after(uint64_t n) { atomic_store(&fail_after, n); }

uint64_t lm_alloc_count(void) { return atomic_load_explicit(&count, memory_order_relaxed); }

static bool must_fail(void) {
    atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    uint64_t left = atomic_load_explicit(&fail_after, memory_order_relaxed);
    while (left && !atomic_compare_exchange_weak(&fail_after, &left, left - 1)) {
    }
    return left == 1;
}

/* A size of 0 gives a pointer too, so that NULL always means "out of memory". */
void *lm_malloc(size_t n) {
    if (must_fail() || n > PTRDIFF_MAX) return NULL;
    return malloc(n ? n : 1);
}

void *lm_calloc(size_t n, size_t size) {
    uint64_t bytes;
    if (must_fail() || !lm_mul(n, size, &bytes) || bytes > PTRDIFF_MAX) return NULL;
    return calloc(bytes ? bytes : 1, 1);
}

void *lm_realloc(void *p, size_t n) {
    if (must_fail() || n > PTRDIFF_MAX) return NULL;
    return realloc(p, n ? n : 1);
}

void lm_free(void *p) { free(p); }

char *lm_strndup(const char *s, size_t n) {
    char *d = n < PTRDIFF_MAX ? lm_malloc(n + 1) : NULL;
    if (!d) return NULL;
    memcpy(d, s, n);
    d[n] = 0;
    return d;
}

char *lm_strdup(const char *s) { return lm_strndup(s, strlen(s)); }

/* The number after `key` in a small file of the kernel's. Memory is short here: none is allocated. */
static bool kernel_number(const char *path, const char *key, uint64_t *out) {
    char text[2048];
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *at = strstr(text, key);
    char *end = NULL;
    if (at) *out = strtoull(at + strlen(key), &end, 10);
    return at && end != at + strlen(key);
}

uint64_t lm_memory_available(void) {
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t left = UINT64_MAX, n;
    if (kernel_number("/proc/meminfo", "MemAvailable:", &n) && n <= UINT64_MAX / 1024) left = n * 1024;
    struct rlimit most;
    if (!getrlimit(RLIMIT_AS, &most) && most.rlim_cur != RLIM_INFINITY && kernel_number("/proc/self/statm", "", &n) &&
        n <= UINT64_MAX / page) {
        const uint64_t own = most.rlim_cur > n * page ? most.rlim_cur - n * page : 0;
        if (own < left) left = own;
    }
    return left;
}

/* ---- pages ------------------------------------------------------------------------------------------------------------------- */

#define HUGE_PAGE ((size_t)2 << 20)

/* bytes rounded up to whole pages, at least one; 0 on overflow */
static size_t page_round(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes == 0) bytes = 1;
    if (bytes > PTRDIFF_MAX - HUGE_PAGE - page) return 0;
    return (bytes + page - 1) / page * page;
}

void *lm_pages_alloc(size_t bytes, bool huge) {
    size_t size = page_round(bytes);
    if (must_fail() || size == 0) return NULL;
    huge = huge && bytes >= HUGE_PAGE;
    size_t slack = huge ? HUGE_PAGE : 0; /* room to slide the start to a huge page's border; given back below */
    uint8_t *m = mmap(NULL, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) return NULL;
    if (!huge) return m;
    size_t head = (HUGE_PAGE - (uintptr_t)m % HUGE_PAGE) % HUGE_PAGE;
    if (head) munmap(m, head);
    if (slack - head) munmap(m + head + size, slack - head);
#ifdef MADV_HUGEPAGE
    madvise(m + head, size, MADV_HUGEPAGE); /* a wish: refused where the kernel has none */
#endif
    return m + head;
}

void lm_pages_free(void *p, size_t bytes) {
    if (p) munmap(p, page_round(bytes));
}

void lm_pages_give_back(void *p, size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const uintptr_t from = ((uintptr_t)p + page - 1) / page * page, to = ((uintptr_t)p + bytes) / page * page;
    if (to > from) madvise((void *)from, to - from, MADV_DONTNEED);
}

/* ---- slabs ------------------------------------------------------------------------------------------------------------------- */

#define SLAB_BYTES ((size_t)64 << 20) /* of address space: what is not taken is never touched */

struct lm_slab {
    uint8_t *p;
    size_t size, used;
    atomic_uint users; /* blocks, and its maker */
};

static size_t in_lines(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

lm_slab *lm_slab_create(size_t bytes) {
    lm_slab *s = bytes <= PTRDIFF_MAX ? lm_calloc(1, sizeof *s) : NULL;
    if (!s) return NULL;
    s->size = in_lines(bytes);
    atomic_init(&s->users, 1);
    if ((s->p = lm_pages_alloc(s->size, true))) return s;
    lm_free(s);
    return NULL;
}
static void slab_drop(lm_slab *s) {
    if (atomic_fetch_sub_explicit(&s->users, 1, memory_order_acq_rel) != 1) return;
    lm_pages_free(s->p, s->size);
    lm_free(s);
}
void lm_slab_leave(lm_slab **at) {
    if (*at) slab_drop(*at);
    *at = NULL;
}
void *lm_slab_take(lm_slab *s, size_t bytes) {
    if (bytes > PTRDIFF_MAX || in_lines(bytes) > s->size - s->used) return NULL;
    uint8_t *p = s->p + s->used;
    s->used += in_lines(bytes);
    atomic_fetch_add_explicit(&s->users, 1, memory_order_relaxed);
    return p;
}
size_t lm_slab_asks(size_t bytes) { return bytes > SLAB_BYTES / 2 ? bytes : SLAB_BYTES; }
void *lm_slab_alloc(lm_slab **at, size_t bytes, lm_slab **of) {
    const bool alone = bytes > SLAB_BYTES / 2;
    void *p = *at && !alone ? lm_slab_take(*at, bytes) : NULL;
    if (p) return *of = *at, p;
    lm_slab *s = lm_slab_create(lm_slab_asks(bytes));
    if (!s) return NULL;
    p = lm_slab_take(s, bytes);
    *of = s;
    if (alone) return slab_drop(s), p;
    lm_slab_leave(at);
    *at = s;
    return p;
}
void lm_slab_free(lm_slab *s, void *p, size_t bytes) {
    lm_pages_give_back(p, bytes); /* what is not given back now goes with the slab */
    slab_drop(s);
}

/* ---- arena ------------------------------------------------------------------------------------------------------------------- */

#define ARENA_ALIGN 64
#define ARENA_FIRST ((size_t)16 << 10)
#define ARENA_MOST ((size_t)4 << 20) /* chunks double up to here */

/* One calloc'd block; data follows, starting at the next 64-byte border. Nothing is ever given back, so what is handed out is zero. */
typedef struct chunk {
    struct chunk *prev;
    uint8_t *at, *end;
} chunk;

struct lm_arena {
    chunk *last;
    size_t next_size, bytes;
};

lm_arena *lm_arena_create(void) {
    lm_arena *a = lm_calloc(1, sizeof *a);
    if (!a) return NULL;
    a->next_size = ARENA_FIRST;
    a->bytes = sizeof *a;
    return a;
}

void lm_arena_destroy(lm_arena *a) {
    if (!a) return;
    for (chunk *c = a->last, *prev; c; c = prev) {
        prev = c->prev;
        lm_free(c);
    }
    lm_free(a);
}

static uint8_t *align_up(uint8_t *p, size_t align) { return p + (align - (uintptr_t)p % align) % align; }

static void *arena_take(lm_arena *a, size_t bytes, size_t align) {
    if (bytes == 0) bytes = 1;
    chunk *c = a->last;
    if (c) {
        uint8_t *p = align_up(c->at, align);
        if (p <= c->end && bytes <= (size_t)(c->end - p)) {
            c->at = p + bytes;
            return p;
        }
    }
    uint64_t want;
    if (!lm_add(bytes, sizeof *c + ARENA_ALIGN, &want)) return NULL;
    /* What would fill most of a chunk gets one of its own, so that it doesn't use up the current one's rest. */
    bool own = want > a->next_size / 2;
    size_t size = own ? want : a->next_size;
    chunk *fresh = lm_calloc(1, size);
    if (!fresh) return NULL;
    a->bytes += size;
    uint8_t *p = align_up((uint8_t *)(fresh + 1), ARENA_ALIGN);
    fresh->at = p + bytes;
    fresh->end = (uint8_t *)fresh + size;
    if (own && c) {
        fresh->prev = c->prev;
        c->prev = fresh;
    } else {
        fresh->prev = c;
        a->last = fresh;
        if (!own && a->next_size < ARENA_MOST) a->next_size *= 2;
    }
    return p;
}

void *lm_arena_alloc(lm_arena *a, size_t bytes) { return arena_take(a, bytes, ARENA_ALIGN); }

void *lm_arena_calloc(lm_arena *a, size_t n, size_t size) {
    uint64_t bytes;
    return lm_mul(n, size, &bytes) ? lm_arena_alloc(a, bytes) : NULL;
}

char *lm_arena_strndup(lm_arena *a, const char *s, size_t n) {
    char *d = n < PTRDIFF_MAX ? arena_take(a, n + 1, 1) : NULL;
    if (d) memcpy(d, s, n);
    return d;
}

char *lm_arena_vprintf(lm_arena *a, const char *fmt, va_list ap) {
    va_list again;
    va_copy(again, ap);
    const int n = vsnprintf(NULL, 0, fmt, ap);
    char *d = n >= 0 ? arena_take(a, (size_t)n + 1, 1) : NULL;
    if (d) vsnprintf(d, (size_t)n + 1, fmt, again);
    va_end(again);
    return d;
}
char *lm_arena_printf(lm_arena *a, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char *d = lm_arena_vprintf(a, fmt, ap);
    va_end(ap);
    return d;
}

size_t lm_arena_bytes(const lm_arena *a) { return a->bytes; }
