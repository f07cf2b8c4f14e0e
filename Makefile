# lemma's build. `make` builds build/lemma; `make help` lists the rest. Debian 12 is the reference platform; tools/setup installs what is missing.
CC      ?= gcc
AR      ?= ar
B       ?= build
OPT     ?= -O3
WERROR  ?= $(if $(CI),-Werror,)
PREFIX  ?= /usr/local
JOBS    ?= $(shell nproc)
CACHE   := $(or $(LEMMA_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/lemma)

VERSION := 0.1.0
COMMIT  := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)

# Defined arithmetic: nothing is contracted, nothing is reassociated. One binary for any CPU of the architecture: only the files of an
# instruction set's own folder are built for it, and they run only after a start-up check.
ARCH    := $(shell $(CC) -dumpmachine | cut -d- -f1)
CFLAGS  += -std=c17 -D_GNU_SOURCE $(OPT) -g -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-missing-field-initializers -Werror=implicit-function-declaration $(WERROR) \
           -ffp-contract=off -fno-math-errno -fno-trapping-math -fvisibility=hidden -pthread -Iinclude -Isrc -I$(B)/gen $(SAN)
LDLIBS  += -ljansson -lpcre2-8 -lutf8proc -lm
ISA_avx2   := -mavx2 -mfma -mf16c
ISA_avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c

ALL_SRC := $(sort $(shell find src -name '*.c'))
FOREIGN_x86_64  := src/kernels/neon/%
FOREIGN_aarch64 := src/kernels/avx2/% src/kernels/avx512/%
FOREIGN_arm64   := $(FOREIGN_aarch64)
SRC := $(filter-out $(or $(FOREIGN_$(ARCH)),$(FOREIGN_x86_64) $(FOREIGN_aarch64)),$(ALL_SRC))
CLI_SRC := $(sort $(wildcard cli/*.c))
OBJ     := $(SRC:%.c=$(B)/%.o)
CLI_OBJ := $(CLI_SRC:%.c=$(B)/%.o)
GEN     := $(B)/gen/dtype_list.h $(B)/gen/arch_list.h $(B)/gen/version.h

.DEFAULT_GOAL := all
.PRECIOUS: $(B)/gen/%_list.h
.PHONY: all lib aarch64 aarch64-kernels test test-peers unit asan fuzz fuzz-targets bench bench-peers demo ledger install uninstall clean help FORCE
all:
	@tools/setup --quiet build
	@$(MAKE) --no-print-directory -j$(JOBS) $(B)/lemma
lib: $(B)/liblemma.a

$(B)/liblemma.a: $(OBJ)
	@rm -f $@
	@$(AR) rcs $@ $^
$(B)/lemma: $(CLI_OBJ) $(B)/liblemma.a
	$(CC) $(CFLAGS) -o $@ $(CLI_OBJ) $(B)/liblemma.a $(LDFLAGS) $(LDLIBS)

# Kernels index by whole vectors and are tested between guard pages; the sanitizers' compilers take minutes over each of these files. What the
# machine could do is measured as the kernels are built.
$(B)/src/kernels/%.o: override SAN :=
$(B)/src/kernels/%.o: override OPT := -O3
$(B)/src/bench/peaks.o: override SAN :=
$(B)/src/bench/peaks.o: override OPT := -O3
$(B)/src/kernels/ref/%.o: CFLAGS += -Wno-psabi
$(B)/src/kernels/avx2/%.o: CFLAGS += $(ISA_avx2)
$(B)/src/kernels/avx512/%.o: CFLAGS += $(ISA_avx512)
$(B)/src/kernels/avx2/int_avxvnni.o: CFLAGS += -mavxvnni
$(B)/src/kernels/avx512/int_vnni.o $(B)/src/kernels/avx512/int_quantise.o: CFLAGS += -mavx512vnni
$(B)/src/kernels/avx512/bf16_dp.o: CFLAGS += -mavx512bf16
$(B)/src/kernels/neon/int_dotprod.o: CFLAGS += -march=armv8.2-a+dotprod
$(B)/src/kernels/neon/int_i8mm.o: CFLAGS += -march=armv8.2-a+dotprod+i8mm
$(B)/%.o: %.c Makefile | $(GEN)
	@mkdir -p $(@D)
	@echo "CC $<"
	@$(CC) $(CFLAGS) -MMD -MP -c -o $@ $<
-include $(OBJ:.o=.d) $(CLI_OBJ:.o=.d)

# Lists generated from the folders: a family or a storage type is added by adding its file.
$(B)/gen/%_list.h: FORCE
	@mkdir -p $(@D)
	@tools/genlist $* > $@.new; cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(B)/gen/version.h: FORCE
	@mkdir -p $(@D)
	@printf '#define LM_VERSION "%s"\n#define LM_COMMIT "%s"\n' '$(VERSION)' '$(COMMIT)' > $@.new; cmp -s $@.new $@ && rm $@.new || mv $@.new $@

# ---- tests ----------------------------------------------------------------------------------------------------------------------
UNIT_SRC := $(sort $(wildcard tests/unit/test_*.c tests/kernels/test_*.c))
UNIT_BIN := $(UNIT_SRC:%.c=$(B)/%)
$(B)/tests/%: tests/%.c $(B)/liblemma.a
	@mkdir -p $(@D)
	@echo "CC $<"
	@$(CC) $(CFLAGS) -Itests -MMD -MP -o $@ $< $(B)/liblemma.a $(LDFLAGS) -lcmocka $(LDLIBS)
-include $(UNIT_BIN:=.d)
unit: $(UNIT_BIN)

SHARED ?=
test:
	@tools/setup --quiet build test
	@tools/setup --quiet page || echo "make test: no chromium: the reports are not rendered" >&2
	@$(MAKE) --no-print-directory -j$(JOBS) $(B)/lemma unit
	@B=$(B) SHARED=$(SHARED) tests/run
asan:
	@tools/setup --quiet build test
	@$(MAKE) --no-print-directory -j$(JOBS) B=build-asan OPT=-O1 SAN="-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer" build-asan/lemma unit
	@B=build-asan SHARED=$(SHARED) tests/run asan

# llama.cpp reads what lemma wrote: it is built from source into an environment outside the tree. Not a part of `make test`.
PEERS := $(or $(LEMMA_PEERS),$(CACHE)/peers)
test-peers: all
	@tools/peers/install "$(PEERS)"
	@"$(PEERS)/bin/python" tools/peers/compare.py $(B)/lemma

# ---- AArch64 from another machine: build-aarch64/lemma, which qemu-aarch64 -L /usr/aarch64-linux-gnu runs. On AArch64 itself `make` does. ----
# tools/setup keeps the libraries outside the tree and outside the system's package state; they are linked statically, the C library is not.
SYSROOT := $(CACHE)/aarch64-sysroot/usr
CROSS = CFLAGS="-isystem $(SYSROOT)/include -isystem $(SYSROOT)/include/aarch64-linux-gnu" LDFLAGS="-L$(SYSROOT)/lib/aarch64-linux-gnu" \
    $(MAKE) --no-print-directory -j$(JOBS) B=build-aarch64 CC=aarch64-linux-gnu-gcc AR=aarch64-linux-gnu-ar
aarch64:
	@LEMMA_SYSROOT=$(SYSROOT) tools/setup --quiet cross
	@$(CROSS) build-aarch64/lemma
aarch64-kernels: aarch64
	@$(CROSS) $(addprefix build-aarch64/tests/kernels/test_,product vector lane_int bf16 attend_bf16)

# ---- a real model, speed, hostile files ------------------------------------------------------------------------------------------
FILE ?=
demo: all
	@B=$(B) tools/demo $(FILE)
ledger: all
	@B=$(B) tools/ledger > $(B)/LEDGER.md || { rc=$$?; tail -n 20 $(B)/LEDGER.md; exit $$rc; }
	@mv $(B)/LEDGER.md docs/LEDGER.md && tail -n 1 docs/LEDGER.md

MODEL ?= $(CACHE)/SmolLM2-135M-Instruct.Q4_1.gguf
BENCH ?= -p 512 -n 128 --depth 0,2048 --batch 1,8 --lanes f32,i8
BENCH_PEERS ?=
bench: all
	@m="$(MODEL)"; if [ ! -e "$$m" ]; then m=tests/fixtures/gguf/llama.gguf; \
	    echo "make bench: $(MODEL) is not here (make demo fetches it): timing $$m, a fixture too small to say much" >&2; fi; \
	    $(B)/lemma bench "$$m" $(BENCH)
bench-peers: all
	@tools/peers/install "$(PEERS)"
	@python3 tools/bench_peers.py --peers "$(PEERS)" $(BENCH_PEERS) $(B)/lemma "$(MODEL)"

# libFuzzer comes with clang. Findings and corpora stay in build-fuzz; a target built with gcc replays one (tests/fuzz/replay.h).
FUZZ_SECONDS ?= 60
FUZZ_SRC := $(sort $(wildcard tests/fuzz/fuzz_*.c))
FUZZ_SAN := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
# The rooms that parse: the kernels take minutes to compile under the sanitizers, and see no files.
FUZZ_READS := src/kernels/kv.c src/backend/state.c src/backend/state_file.c src/verify/receipt.c src/verify/trace.c
FUZZ_OBJ := $(patsubst %.c,$(B)/%.o,$(filter src/base/% src/quant/% src/tensor/% src/format/% src/tokenizer/% src/graph/% $(FUZZ_READS),$(SRC)))
$(B)/tests/fuzz/%: tests/fuzz/%.c $(FUZZ_OBJ)
	@mkdir -p $(@D)
	@echo "CC $<"
	@$(CC) $(CFLAGS) $(FUZZ_LINK) -Itests -o $@ $< $(FUZZ_OBJ) $(LDFLAGS) $(LDLIBS)
fuzz-targets: $(FUZZ_SRC:%.c=$(B)/%)
fuzz:
	@tools/setup --quiet build
	@command -v clang >/dev/null || { echo "make fuzz needs clang: apt-get install clang" >&2; exit 3; }
	@$(MAKE) --no-print-directory -j$(JOBS) B=build-fuzz CC=clang OPT=-O1 WERROR= SAN="$(FUZZ_SAN)" FUZZ_LINK=-fsanitize=fuzzer fuzz-targets
	@python3 tests/fuzz/seeds.py build-fuzz/corpus
	@for f in $(FUZZ_SRC:tests/fuzz/fuzz_%.c=%); do mkdir -p build-fuzz/corpus/$$f; echo "fuzz $$f, $(FUZZ_SECONDS) s"; \
	    build-fuzz/tests/fuzz/fuzz_$$f -max_total_time=$(FUZZ_SECONDS) -timeout=10 -verbosity=0 -print_final_stats=1 \
	        -artifact_prefix=build-fuzz/found-$$f- build-fuzz/corpus/$$f || exit 1; done

# ---- installing -------------------------------------------------------------------------------------------------------------------
install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib $(DESTDIR)$(PREFIX)/include/lemma
	install -m 755 $(B)/lemma $(DESTDIR)$(PREFIX)/bin/lemma
	install -m 644 $(B)/liblemma.a $(DESTDIR)$(PREFIX)/lib/liblemma.a
	install -m 644 $(wildcard include/lemma/*.h) $(DESTDIR)$(PREFIX)/include/lemma/
uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/lemma $(DESTDIR)$(PREFIX)/lib/liblemma.a
	rm -rf $(DESTDIR)$(PREFIX)/include/lemma

help:
	@echo "make            build/lemma (B=DIR builds elsewhere)"
	@echo "make test       everything (SHARED=DIR adds the tokenizers and templates kept outside the tree)"
	@echo "make test-peers llama.cpp continues the traces from the GGUF files that lemma writes"
	@echo "make aarch64    build-aarch64/lemma, built here for AArch64 (native there: make)"
	@echo "make demo       fetch a real model, prove it, run it (FILE=PATH: a copy that is here already)"
	@echo "make ledger     measure every model that is here, and write docs/LEDGER.md"
	@echo "make asan       the tests under AddressSanitizer and UBSan"
	@echo "make fuzz       the parsers' fuzz targets, a minute each"
	@echo "make bench      speed as a share of this machine's limits"
	@echo "make bench-peers the same beside llama.cpp, in turns"
	@echo "make install    to PREFIX (default /usr/local); make uninstall takes it away again"
	@echo "make lib, unit  build/liblemma.a; the test programs, not run"
	@echo "make clean      the build folders"
clean:
	rm -rf build build-asan build-fuzz build-aarch64
