"""llama.cpp through llama-cpp-python's low-level calls: token ids in, logits out; no tokenizer, no sampler, no server. One model and one
context; for a process of its own, which llama.cpp may abort. Only this file imports the package."""
import ctypes
import random
import time

import llama_cpp as c

NAME = f"llama.cpp (llama-cpp-python {c.__version__})"
FLASH = {None: c.LLAMA_FLASH_ATTN_TYPE_AUTO, False: c.LLAMA_FLASH_ATTN_TYPE_DISABLED, True: c.LLAMA_FLASH_ATTN_TYPE_ENABLED}
_errors = []


@c.llama_log_callback
def _log(level, text, data):
    if level >= 4:  # GGML_LOG_LEVEL_ERROR, and the lines that continue one
        _errors.append(text.decode(errors="replace"))


class Failed(Exception):
    pass


def fail(what):
    raise Failed("".join(_errors).strip().replace("\n", " ") or what)


def features():
    """What the CPU build was made with: "AVX512_VNNI REPACK …"."""
    text = c.llama_print_system_info().decode()
    return " ".join(x.split("=")[0].strip().split(":")[-1].strip() for x in text.split("|") if x.strip().endswith("= 1"))


class Peer:
    """Room for n_seq sequences of `length` tokens. exact: the cache in f32, no flash attention. repack: weights in the CPU's own layout."""

    def __init__(self, path, threads=1, n_seq=1, length=2048, exact=False, flash=None, repack=True, batch=512):
        c.llama_log_set(_log, None)
        c.llama_backend_init()
        mp = c.llama_model_default_params()
        mp.n_gpu_layers = 0
        mp.use_extra_bufts = repack
        self.model = c.llama_model_load_from_file(path.encode(), mp)
        if not self.model:
            fail("can't read the file")
        cp = c.llama_context_default_params()
        cp.n_ctx = n_seq * (-(-length // 256) * 256)
        cp.n_batch = max(batch, n_seq)
        cp.n_seq_max = n_seq
        cp.n_threads = cp.n_threads_batch = threads
        cp.flash_attn_type = FLASH[False if exact else flash]
        if exact:
            cp.type_k = cp.type_v = c.GGML_TYPE_F32
        self.ctx = c.llama_init_from_model(self.model, cp)
        if not self.ctx:
            fail("can't make a context")
        self.memory = c.llama_get_memory(self.ctx)
        self.vocab = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self.model))
        self.rows = c.llama_batch_init(cp.n_batch, 0, 1)
        self.n_seq, self.n_batch = n_seq, cp.n_batch

    def decode(self, rows):
        """rows: (sequence, position, id, logits wanted), at most n_batch. Seconds that it took."""
        b = self.rows
        b.n_tokens = len(rows)
        for i, (seq, pos, token, wanted) in enumerate(rows):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = token, pos, 1, wanted
            b.seq_id[i][0] = seq
        start = time.perf_counter()
        if c.llama_decode(self.ctx, b):
            fail("llama_decode failed")
        c.llama_synchronize(self.ctx)
        return time.perf_counter() - start

    def clear(self):
        c.llama_memory_clear(self.memory, True)

    def logits(self, i=-1):
        """A ctypes array that lives until the next decode: of row i of the batch."""
        p = c.llama_get_logits_ith(self.ctx, i)
        return ctypes.cast(p, ctypes.POINTER(ctypes.c_float * self.vocab)).contents if p else fail("no logits")

    def greedy(self, ids, n):
        """The bare arg-max continuation: the lowest id among equals; nothing ends it."""
        self.clear()
        for at in range(0, len(ids), self.n_batch):
            part = ids[at : at + self.n_batch]
            self.decode([(0, at + i, t, at + i + 1 == len(ids)) for i, t in enumerate(part)])
        out = []
        while True:
            row = list(self.logits())
            best = max(row)
            if not best < float("inf"):
                fail("the logits are not finite")
            out.append(row.index(best))
            if len(out) == n:
                return out
            self.decode([(0, len(ids) + len(out) - 1, out[-1], True)])

    # ---- for timing: ids that are drawn, a function of sequence and position ----
    def drawn(self, seq, pos):
        return random.Random(seq << 32 | pos).randrange(self.vocab)

    def prefill(self, n, last=True):
        """Seconds for n tokens."""
        self.clear()
        seconds = 0
        for at in range(0, n, self.n_batch):
            rows = [(0, i, self.drawn(0, i), last and i + 1 == n) for i in range(at, min(n, at + self.n_batch))]
            seconds += self.decode(rows)
        return seconds

    def steps(self, depth, n):
        """Seconds for n steps of all sequences after `depth` tokens."""
        self.clear()
        if depth:
            self.prefill(depth, last=False)
            for s in range(1, self.n_seq):
                c.llama_memory_seq_cp(self.memory, 0, s, -1, -1)
        return sum(self.decode([(s, depth + i, self.drawn(s, depth + i), True) for s in range(self.n_seq)]) for i in range(n))
