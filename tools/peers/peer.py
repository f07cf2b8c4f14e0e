"""llama.cpp and its fork ik_llama.cpp through the low-level calls of two Python packages: token ids in, logits out; no tokenizer, no sampler, no
server. One engine, one model and one context; for a process of its own, which the engine may abort. Only this file imports the packages.

    engine("llama")    llama.cpp as llama-cpp-python builds it
    engine("ik")       ik_llama.cpp as ik-llama-cpp-python builds it: not everything that it computes is right (tools/peers/kl.py)
"""
import ctypes
import importlib.metadata
import random
import time

_errors = []


class Failed(Exception):
    pass


def fail(what):
    raise Failed("".join(_errors).strip().replace("\n", " ") or what)


def _log(level, text, data):
    if level in (4, 5):  # an error, and the lines that continue one
        _errors.append(text.decode(errors="replace"))


class Peer:
    """Room for n_seq sequences of `length` tokens. exact: the cache in f32, no flash attention. repack: weights in the CPU's own layout."""

    def __init__(self, path, threads=1, n_seq=1, length=2048, exact=False, flash=None, repack=None, batch=512):
        self.c = self.load()
        self.c.llama_backend_init()
        mp = self.c.llama_model_default_params()
        mp.n_gpu_layers = 0
        self.set_model(mp, repack)
        self.model = self.c.llama_model_load_from_file(path.encode(), mp)
        if not self.model:
            fail("can't read the file")
        cp = self.c.llama_context_default_params()
        cp.n_ctx = n_seq * (-(-length // 256) * 256)
        cp.n_batch = max(batch, n_seq)
        cp.n_seq_max = n_seq
        cp.n_threads = cp.n_threads_batch = threads
        self.set_context(cp, False if exact else flash)
        if exact:
            cp.type_k = cp.type_v = 0  # GGML_TYPE_F32
        self.ctx = self.c.llama_init_from_model(self.model, cp)
        if not self.ctx:
            fail("can't make a context")
        self.vocab = self.c.llama_vocab_n_tokens(self.c.llama_model_get_vocab(self.model))
        self.rows = self.c.llama_batch_init(cp.n_batch, 0, 1)
        self.n_seq, self.n_batch = n_seq, cp.n_batch

    @classmethod
    def name(cls):
        return f"{cls.ENGINE} ({cls.PACKAGE} {importlib.metadata.version(cls.PACKAGE)})"

    @classmethod
    def features(cls):
        """What the CPU build was made with: "AVX512_VNNI REPACK …"."""
        text = cls.load().llama_print_system_info().decode()
        return " ".join(x.split("=")[0].strip().split(":")[-1].strip() for x in text.split("|") if x.strip().endswith("= 1"))

    def decode(self, rows):
        """rows: (sequence, position, id, logits wanted), at most n_batch. Seconds that it took."""
        b = self.rows
        b.n_tokens = len(rows)
        for i, (seq, pos, token, wanted) in enumerate(rows):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = token, pos, 1, wanted
            b.seq_id[i][0] = seq
        start = time.perf_counter()
        if self.c.llama_decode(self.ctx, b):
            fail("llama_decode failed")
        self.c.llama_synchronize(self.ctx)
        return time.perf_counter() - start

    def logits(self, i=-1):
        """A ctypes array that lives until the next decode: of row i of the batch."""
        p = self.c.llama_get_logits_ith(self.ctx, i)
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
                self.copy(s)
        return sum(self.decode([(s, depth + i, self.drawn(s, depth + i), True) for s in range(self.n_seq)]) for i in range(n))


class Llama(Peer):
    ENGINE, PACKAGE = "llama.cpp", "llama-cpp-python"

    @classmethod
    def load(cls):
        import llama_cpp as c

        cls.log = c.llama_log_callback(_log)
        c.llama_log_set(cls.log, None)
        return c

    def set_model(self, params, repack):
        params.use_extra_bufts = repack is not False

    def set_context(self, params, flash):
        c = self.c
        params.flash_attn_type = {None: c.LLAMA_FLASH_ATTN_TYPE_AUTO, False: c.LLAMA_FLASH_ATTN_TYPE_DISABLED, True: c.LLAMA_FLASH_ATTN_TYPE_ENABLED}[flash]

    def clear(self):
        self.c.llama_memory_clear(self.c.llama_get_memory(self.ctx), True)

    def copy(self, seq):
        self.c.llama_memory_seq_cp(self.c.llama_get_memory(self.ctx), 0, seq, -1, -1)


class Ik(Peer):
    """Weights are repacked at load on request only, which turns the mapping of the file off."""

    ENGINE, PACKAGE = "ik_llama.cpp", "ik-llama-cpp-python"

    @classmethod
    def load(cls):
        import ik_llama_cpp._ctypes_api as c

        # What the package doesn't declare.
        lib, vp, i32 = c._lib, ctypes.c_void_p, ctypes.c_int32
        lib.llama_synchronize.argtypes = [vp]
        lib.llama_kv_cache_seq_cp.argtypes = [vp, i32, i32, i32, i32]
        lib.llama_print_system_info.restype = ctypes.c_char_p
        lib.llama_log_set.argtypes = [vp, vp]
        c.llama_synchronize, c.llama_print_system_info = lib.llama_synchronize, lib.llama_print_system_info
        cls.log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, vp)(_log)
        lib.llama_log_set(ctypes.cast(cls.log, vp), None)
        return c

    def set_model(self, params, repack):
        params.repack_tensors = bool(repack)

    def set_context(self, params, flash):
        params.flash_attn = flash is not False

    def clear(self):
        self.c.llama_kv_cache_clear(self.ctx)

    def copy(self, seq):
        self.c._lib.llama_kv_cache_seq_cp(self.ctx, 0, seq, -1, -1)


ENGINES = {"llama": Llama, "ik": Ik}


def engine(name):
    return ENGINES[name]
