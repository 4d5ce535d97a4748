/*
 * fuzz.h - what the fuzz targets share: bytes taken one by one, and checks that end the process
 *
 * A target is one file that defines LLVMFuzzerTestOneInput(): it reads its input as a list of operations, carries
 * them out on one part of the library and on a reference too simple to be wrong, and compares. Two programs are made
 * of each: with libFuzzer, which looks for inputs that reach new code (`make fuzz`), and with replay-main.c, which
 * carries out the inputs that were found before, in corpus/ (`make check`).
 *
 * Every input is a good one: numbers are brought into bounds, and past its end it is all zeros.
 */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What is freed by RCU is waited for, and counted, after so many inputs: a grace period takes 10 ms. */
#ifndef FUZZ_DRAIN_EVERY
#define FUZZ_DRAIN_EVERY 1
#endif

struct fuzz_in { const uint8_t *at, *end; };

static inline struct fuzz_in fuzz_begin(const uint8_t *data, size_t size)
{
	return (struct fuzz_in){ data, data + size };
}

static inline bool fuzz_more(const struct fuzz_in *in)
{
	return in->at < in->end;
}

static inline uint8_t fuzz_byte(struct fuzz_in *in)
{
	return in->at < in->end ? *in->at++ : 0;
}

/* A number of @bytes bytes, the lowest first. */
static inline uint64_t fuzz_number(struct fuzz_in *in, unsigned bytes)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < bytes; i++)
		n |= (uint64_t)fuzz_byte(in) << (8 * i);
	return n;
}

/* 0 … n - 1, n > 0, from as many bytes as that takes. */
static inline uint64_t fuzz_below(struct fuzz_in *in, uint64_t n)
{
	unsigned bytes = 0;

	for (uint64_t left = n - 1; left; left >>= 8)
		bytes++;
	return fuzz_number(in, bytes) % n;
}

/* A number of any size up to @bits bits: as many small ones as large ones. */
static inline uint64_t fuzz_any_size(struct fuzz_in *in, unsigned bits)
{
	unsigned n = fuzz_byte(in) % (bits + 1);

	return n ? fuzz_number(in, (n + 7) / 8) & UINT64_MAX >> (64 - n) : 0;
}

/* Prints and aborts, which is what libFuzzer and replay-main.c call a failure. */
#define FUZZ_CHECK(cond, ...) do {								\
	if (!(cond)) {										\
		fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #cond);			\
		fprintf(stderr, __VA_ARGS__);							\
		fputc('\n', stderr);								\
		abort();									\
	}											\
} while (0)

#define FUZZ_EQ(a, b) do {									\
	uint64_t fuzz_a_ = (uint64_t)(a), fuzz_b_ = (uint64_t)(b);				\
	FUZZ_CHECK(fuzz_a_ == fuzz_b_, "%s is %lld, not %lld (%s)", #a, (long long)fuzz_a_,	\
		   (long long)fuzz_b_, #b);							\
} while (0)

#endif
