# libiomap - one Makefile, GNU make
#
#   make                        the library, the examples, the benchmark program
#   make check                  all tests, at most 3 minutes on 2 cores; make check-long has all night
#   make BUILD=asan check       debug, asan or tsan in place of release; sim: the simulator's part
#   make check-kernel           the same operations through the library and through the kernel: the same results
#   make sim SECONDS=60         the whole library under the simulator, new seeds; SEED=n: that one, told and made smaller
#   make mutants                plants the bugs of tests/mutants.txt one by one, and sees that each is found
#   make fuzz FUZZ_SECONDS=60   look for new failures with libFuzzer, so long for each of tests/fuzz/*.c
#   make demo                   what the library is for, in a minute
#   make bench ARGS="…"         build/release/iomap-bench with these arguments
#   make install PREFIX=/usr    headers, libraries, pkg-config file; DESTDIR, LIBDIR, INCLUDEDIR, PKGCONFIGDIR as usual
#   make uninstall              takes them away again; give it the same variables
#   make installcheck           installs below build/, builds the README's program there, uninstalls
#   make format                 clang-format over the sources, or over FILES="…"
#
# WERROR=1 turns warnings into errors. Everything built lies under build/$(BUILD)/.

BUILD ?= release
VERSION := $(shell awk '$$2 ~ /^IOMAP_VERSION_(MAJOR|MINOR|PATCH)$$/ { v = v s $$3; s = "." } END { print v }' include/iomap/base.h)
O := build/$(BUILD)

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
PKGCONFIGDIR ?= $(LIBDIR)/pkgconfig

# Debian packages: what the library and the demo need, and what the tests need beside them
DEPS := gcc libc6-dev make liburcu-dev libaio-dev libjemalloc-dev libjansson-dev libxxhash-dev gnuplot-nox
DEPS_CHECK := g++ check pkg-config
DEPS_FIO := fio
DEPS_TSAN := clang libclang-rt-dev llvm

# --- how each build compiles ----------------------------------------------------------------------------------------------
CC_release := gcc
CC_debug := gcc
CC_asan := gcc
CC_tsan := clang
FLAGS_release := -O2 -g
FLAGS_debug := -Og -g -DIOMAP_DEBUG
FLAGS_asan := -O1 -g -fno-omit-frame-pointer -DIOMAP_DEBUG -fsanitize=address,undefined -fno-sanitize-recover=undefined
# the simulator stands in for platform-posix.c; small tree nodes find more
CC_sim := gcc
FLAGS_sim := -O2 -g -DIOMAP_DEBUG -DIOMAP_SIM -DXA_SHIFT=3 -fno-omit-frame-pointer
FLAGS_tsan := -O1 -g -fno-omit-frame-pointer -DIOMAP_DEBUG -fsanitize=thread
CC_fuzz := clang
FLAGS_fuzz := -O1 -g -fno-omit-frame-pointer -DIOMAP_DEBUG -DFUZZ_DRAIN_EVERY=256 \
	-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined

ifeq ($(FLAGS_$(BUILD)),)
$(error BUILD=$(BUILD): release, debug, asan, tsan or sim)
endif
ifeq ($(origin CC),default)
CC := $(CC_$(BUILD))
endif
CXX ?= g++
AR ?= ar
OBJCOPY ?= objcopy

WARN := -Wall -Wextra -Wshadow -Wvla -Wmissing-prototypes $(if $(WERROR),-Werror)
CPPFLAGS += -Iinclude -D_GNU_SOURCE= -D_FILE_OFFSET_BITS=64
ALL_CFLAGS := -std=gnu11 $(WARN) -fPIC -fvisibility=hidden -pthread $(FLAGS_$(BUILD)) $(CFLAGS)
# what pkg-config knows as LIBS_PC, and what it does not know
LIBS_PC := liburcu-bp
LIBS_REST := -laio -pthread
LIBS := -lurcu-bp -lurcu-common $(LIBS_REST)

# Programs bring jemalloc, the library only looks for it. The sanitizers want malloc to themselves, and a shared library
# of theirs has open symbols.
ifneq ($(filter release debug,$(BUILD)),)
MALLOC := -Wl,--no-as-needed -ljemalloc -Wl,--as-needed
SHARED := $(O)/libiomap.so
FIO := $(O)/examples/fio/libiomap-fio.so
endif

# --- sources, by wildcard -------------------------------------------------------------------------------------------------
objects = $(patsubst %.c,$(O)/%.o,$(wildcard $(1)))
LIB_OBJ := $(call objects,libiomap/*.c)
SIM_OBJ := $(call objects,tests/sim/*.c) $(O)/tests/lib/extfs.o
ifeq ($(BUILD),sim)
LIB_OBJ := $(filter-out %/platform-posix.o,$(LIB_OBJ))
CPPFLAGS += -iquote tests/sim -iquote libiomap
endif
BENCH_OBJ := $(call objects,bench/*.c)
UNIT_OBJ := $(call objects,tests/unit/*.c)
EXAMPLE_OBJ := $(call objects,examples/*.c)
COWSTORE_OBJ := $(call objects,examples/cowstore/*.c)
PROGRAM_OBJ := $(call objects,tests/model/*.c tests/stress/*.c)
TESTLIB_OBJ := $(filter-out %/unit-main.o,$(call objects,tests/lib/*.c))
ALL_OBJ := $(LIB_OBJ) $(SIM_OBJ) $(BENCH_OBJ) $(UNIT_OBJ) $(EXAMPLE_OBJ) $(COWSTORE_OBJ) $(O)/examples/fio/iomap-fio.o \
	$(PROGRAM_OBJ) $(TESTLIB_OBJ) $(O)/tests/lib/unit-main.o

LIB := $(O)/libiomap.a
LIB_TEST := $(O)/libiomap-test.a
BENCH := $(if $(BENCH_OBJ),$(O)/iomap-bench)
UNIT := $(if $(UNIT_OBJ),$(O)/unit-tests)
EXAMPLES := $(EXAMPLE_OBJ:.o=)
COWSTORE := $(O)/examples/cowstore/cowstore
PROGRAMS := $(PROGRAM_OBJ:.o=)
suites := $(sort $(notdir $(basename $(wildcard tests/unit/*.c))))

.PHONY: all check check-long run-check demo bench install uninstall installcheck format clean deps FORCE
.DELETE_ON_ERROR:
.SECONDARY:

all: $(if $(filter sim,$(BUILD)),$(O)/iomap-sim,$(LIB) $(SHARED) $(EXAMPLES) $(COWSTORE) $(FIO) $(BENCH))

# --- the library ----------------------------------------------------------------------------------------------------------
# Tests see the private headers, examples and benchmarks do not.
$(O)/tests/%.o: CPPFLAGS += -iquote libiomap -iquote tests/lib

$(O)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

# Programs get one object in which only the public functions are global. Tests see all symbols.
$(O)/libiomap.o: $(LIB_OBJ)
	$(CC) -r -nostdlib -o $@ $^
	$(OBJCOPY) --localize-hidden $@

$(LIB): $(if $(SHARED),$(O)/libiomap.o,$(LIB_OBJ))
$(LIB_TEST): $(LIB_OBJ)
$(LIB) $(LIB_TEST):
	@rm -f $@
	$(AR) rcs $@ $^

$(O)/libiomap.so: $(LIB_OBJ) libiomap/libiomap.map
	$(CC) $(ALL_CFLAGS) -shared -o $@ -Wl,-soname,libiomap.so.0 -Wl,--version-script=libiomap/libiomap.map \
		-Wl,-z,defs,-z,now,-z,relro,-z,nodelete $(LDFLAGS) $(LIB_OBJ) $(LIBS)
	ln -sf libiomap.so $@.0

# --- programs -------------------------------------------------------------------------------------------------------------
link = $(CC) $(ALL_CFLAGS) -o $@ $(LDFLAGS) $(filter %.o,$^) $(filter %.a,$^) $(MALLOC) $(1) $(LIBS) -lm

# the report names the commit: made anew with each
$(O)/bench/report.o: $(wildcard .git/logs/HEAD)
$(O)/bench/report.o: CPPFLAGS += -DBENCH_COMMIT='"$(shell git describe --always --dirty 2>/dev/null)"'
$(O)/iomap-bench: $(BENCH_OBJ) $(LIB)
	$(call link,-ljansson)

$(EXAMPLES): %: %.o $(LIB)
	$(call link)

$(COWSTORE): $(COWSTORE_OBJ) $(LIB)
	$(call link,-lxxhash)

# A plugin for fio: the library inside, without jemalloc; the two undefined symbols are fio's.
$(O)/examples/fio/libiomap-fio.so: $(O)/examples/fio/iomap-fio.o $(LIB)
	$(CC) $(ALL_CFLAGS) -shared -o $@ -Wl,--exclude-libs,ALL,-z,now,-z,relro,-z,nodelete $(LDFLAGS) $^ $(LIBS)

$(PROGRAMS): %: %.o $(TESTLIB_OBJ) $(LIB_TEST)
	$(call link,$(CHECK_LIBS) $(MORE_LIBS))

$(O)/unit-tests: $(O)/tests/lib/unit-main.o $(UNIT_OBJ) $(TESTLIB_OBJ) $(LIB_TEST)
	$(call link,$(CHECK_LIBS) $(MORE_LIBS))

# the tests of the store use its parts
$(O)/unit-tests $(O)/tests/stress/cowstore-crash: $(filter-out %/main.o,$(COWSTORE_OBJ))
$(O)/unit-tests $(O)/tests/stress/cowstore-crash: MORE_LIBS := -lxxhash
$(O)/tests/unit/cowstore.o $(O)/tests/stress/cowstore-crash.o: CPPFLAGS += -iquote examples/cowstore

CHECK_LIBS = $(shell pkg-config --libs check)

$(O)/tests/lib/unit-main.o: $(O)/suites.inc
$(O)/tests/lib/unit-main.o: CPPFLAGS += -iquote $(O)
$(O)/suites.inc: FORCE
	@mkdir -p $(@D)
	@printf 'SUITE(%s)\n' $(subst -,_,$(suites)) > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

# --- the simulator ---------------------------------------------------------------------------------------------------------
SIM_WRAP := malloc calloc realloc posix_memalign free
$(O)/iomap-sim: $(SIM_OBJ) $(LIB_OBJ)
	$(CC) $(ALL_CFLAGS) -o $@ $(LDFLAGS) $(SIM_WRAP:%=-Wl,--wrap=%) $^

# New seeds each time; what fails can be repeated all the same.
SECONDS ?= 60
.PHONY: sim mutants
sim:
	@tools/deps.sh $(DEPS)
	+@$(MAKE) --no-print-directory BUILD=sim build/sim/iomap-sim
	@$(if $(SEED),build/sim/iomap-sim --seed $(SEED) --count 1 || build/sim/iomap-sim --seed $(SEED) --shrink, \
		build/sim/iomap-sim --sweep && \
		build/sim/iomap-sim --seed $(shell date +%s)000 --seconds $(SECONDS) --jobs $(shell nproc))

mutants:
	@tools/deps.sh $(DEPS) $(DEPS_CHECK)
	tests/mutants.sh $(ARGS)

ifeq ($(BUILD),sim)
SHARED :=
FIO :=
UNIT :=
EXAMPLES :=
COWSTORE :=
PROGRAMS :=
BENCH :=
run-check: $(O)/iomap-sim clang-sim
.PHONY: clang-sim
clang-sim:      # another compiler, the same steps
	$(if $(shell command -v clang),+@$(MAKE) --no-print-directory O=$(O)-clang CC=clang $(O)-clang/iomap-sim)
endif

# --- tests ----------------------------------------------------------------------------------------------------------------
ALONE := stress/readers
# ThreadSanitizer is for threads: no models, no scripts. Scripts that look at the shared library need one.
RUN_PROGRAMS := $(if $(filter tsan,$(BUILD)),$(filter-out $(O)/tests/model/%,$(PROGRAMS)),$(PROGRAMS))
# What measures rates runs alone, after the rest.
RUN_ALONE := $(filter $(ALONE:%=$(O)/tests/%),$(RUN_PROGRAMS))
RUN_SCRIPTS := $(if $(filter tsan sim,$(BUILD)),,tests/cases.sh) $(if $(filter tsan sim,$(BUILD)),,tests/examples.sh tests/cowstore.sh) $(if $(filter sim,$(BUILD)),tests/sim.sh) $(if $(SHARED),tests/headers.sh tests/symbols.sh tests/plugin.sh tests/bench.sh) \
	$(if $(FIO),tests/fio.sh) $(if $(filter release,$(BUILD)),tests/installcheck.sh)

check check-long: deps
	+@$(MAKE) --no-print-directory run-check LONG=$(if $(filter check-long,$@),1)

run-check: $(LIB) $(SHARED) $(FIO) $(UNIT) $(EXAMPLES) $(COWSTORE) $(PROGRAMS) $(BENCH)
	@CLANG_SIM='$(wildcard $(O)-clang/iomap-sim)' BUILD='$(BUILD)' O='$(O)' LONG='$(LONG)' CC='$(CC)' CXX='$(CXX)' LINK='$(FLAGS_$(BUILD)) $(LIB) $(MALLOC) $(LIBS)' \
		tests/run.sh $(if $(UNIT),$(suites:%=unit/%)) $(filter-out $(RUN_ALONE),$(RUN_PROGRAMS)) $(RUN_SCRIPTS) \
		--alone $(RUN_ALONE)

demo: deps
	+@$(MAKE) --no-print-directory BUILD=release build/release/iomap-bench
	build/release/iomap-bench overcharge $(ARGS)

bench: $(BENCH)
	$(BENCH) $(ARGS)

deps:
	@tools/deps.sh $(DEPS) $(if $(filter check check-long installcheck,$(MAKECMDGOALS)),$(DEPS_CHECK)) $(if $(filter tsan sim,$(BUILD)),$(DEPS_TSAN))
	@$(if $(filter check check-long,$(MAKECMDGOALS)),$(if $(FIO),tools/deps.sh --optional $(DEPS_FIO)))

# --- fuzzing --------------------------------------------------------------------------------------------------------------
# tests/fuzz/TARGET.c becomes $(O)/tests/fuzz/TARGET: with BUILD=fuzz a fuzzer, else a program that replays corpus/TARGET.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= $(filter-out replay-main,$(notdir $(basename $(wildcard tests/fuzz/*.c))))
FUZZ_PROGRAMS := $(FUZZ_TARGETS:%=$(O)/tests/fuzz/%)
FUZZ_MAIN := $(if $(filter fuzz,$(BUILD)),,$(O)/tests/fuzz/replay-main.o)
ALL_OBJ += $(FUZZ_PROGRAMS:=.o) $(FUZZ_MAIN)

$(FUZZ_PROGRAMS): %: %.o $(FUZZ_MAIN) $(TESTLIB_OBJ) $(LIB_TEST)
	$(call link,$(if $(FUZZ_MAIN),,-fsanitize=fuzzer) $(CHECK_LIBS))

ifeq ($(filter tsan sim,$(BUILD)),)
RUN_PROGRAMS += $(FUZZ_PROGRAMS)
run-check: $(FUZZ_PROGRAMS)
endif

.PHONY: fuzz run-fuzz
fuzz:
	@tools/deps.sh $(DEPS) $(DEPS_CHECK) $(DEPS_TSAN)
	+@$(MAKE) --no-print-directory BUILD=fuzz run-fuzz

run-fuzz: $(FUZZ_PROGRAMS)
	@O='$(O)' FUZZ_SECONDS='$(FUZZ_SECONDS)' tests/fuzz/run.sh $(FUZZ_TARGETS)

# --- the kernel's answers ---------------------------------------------------------------------------------------------------
# The same operations through the library and through the kernel: in TMPDIR and, where root may mount them, on ext4 and XFS images.
TWIN := $(O)/tests/kernel-twin
ALL_OBJ += $(TWIN).o
$(TWIN): $(TWIN).o $(TESTLIB_OBJ) $(LIB_TEST)
	$(call link,$(CHECK_LIBS))

.PHONY: check-kernel
check-kernel:
	@tools/deps.sh $(DEPS) $(DEPS_CHECK)
	+@$(MAKE) --no-print-directory $(TWIN)
	TWIN=$(TWIN) tests/check-kernel.sh $(ARGS)

# --- the rest -------------------------------------------------------------------------------------------------------------
define PC
prefix=$(PREFIX)
libdir=$(patsubst $(PREFIX)/%,$${prefix}/%,$(LIBDIR))
includedir=$(patsubst $(PREFIX)/%,$${prefix}/%,$(INCLUDEDIR))

Name: libiomap
Description: page cache in user space: buffered I/O over O_DIRECT
Version: $(VERSION)
Requires.private: $(LIBS_PC)
Cflags: -I$${includedir}
Libs: -L$${libdir} -liomap
Libs.private: $(LIBS_REST)
endef
export PC

install: $(LIB) $(SHARED)
	install -d $(DESTDIR)$(INCLUDEDIR)/iomap $(DESTDIR)$(LIBDIR) $(DESTDIR)$(PKGCONFIGDIR)
	install -m 644 include/iomap/*.h $(DESTDIR)$(INCLUDEDIR)/iomap/
	install -m 644 $(LIB) $(DESTDIR)$(LIBDIR)/
	$(if $(SHARED),install -m 755 $(SHARED) $(DESTDIR)$(LIBDIR)/libiomap.so.$(VERSION))
	$(if $(SHARED),ln -sf libiomap.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libiomap.so.0)
	$(if $(SHARED),ln -sf libiomap.so.0 $(DESTDIR)$(LIBDIR)/libiomap.so)
	@echo "$$PC" > $(DESTDIR)$(PKGCONFIGDIR)/libiomap.pc

# Nothing that was there before: the directories that libraries share stay.
uninstall:
	rm -f $(patsubst include/%,$(DESTDIR)$(INCLUDEDIR)/%,$(wildcard include/iomap/*.h))
	[ ! -d $(DESTDIR)$(INCLUDEDIR)/iomap ] || rmdir --ignore-fail-on-non-empty $(DESTDIR)$(INCLUDEDIR)/iomap
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,libiomap.a libiomap.so libiomap.so.0 libiomap.so.$(VERSION))
	rm -f $(DESTDIR)$(PKGCONFIGDIR)/libiomap.pc

installcheck: deps $(LIB) $(SHARED)
	@O='$(O)' BUILD='$(BUILD)' CC='$(CC)' tests/installcheck.sh

FILES ?= $(wildcard include/iomap/*.h libiomap/*.[ch] examples/*.[ch] examples/*/*.[ch] bench/*.[ch] tests/*/*.[ch])
format:
	clang-format -i $(FILES)

clean:
	rm -rf build

-include $(ALL_OBJ:.o=.d)
