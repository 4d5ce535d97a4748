/*
 * hold-device.h - an engine's device over RAM that misbehaves on request
 *
 * struct t_hold is the store with its rules, its request log and its volatile write cache; t_hold_device() makes the
 * iomap_device on it, as often as wanted (a device serves one cache only, the store outlives many).
 *
 * It checks the contract of device.h at every request: alignment, sizes, at most one request in flight per byte where one
 * of them writes (two that write, with direct_reads), and memory that does not change while it is written. t_hold_bad() says what was broken first.
 *
 * A read that ends at the device's end fills the rest of the buffer with 0xAA, as hardware may.
 */
#ifndef TESTS_HOLD_DEVICE_H
#define TESTS_HOLD_DEVICE_H

#include <stdbool.h>
#include <stdint.h>
#include <iomap/device.h>

struct t_hold;

struct t_hold_params {
	uint64_t size;                  /* bytes at first */
	uint64_t capacity;              /* most it can grow to, default 64 MiB */
	uint32_t block;                 /* info.block, default 512 */
	uint32_t mem_align;             /* info.mem_align, default 512 */
	uint64_t max_bytes;             /* info.max_bytes, 0 = no limit */
	unsigned queue_depth;           /* takes no more requests than that at once, 0 = no limit */
	bool fixed_size;                /* no set_size, no unaligned end */
	bool no_allocate;               /* no allocate operation */
	bool volatile_cache;            /* only a flush makes durable; keeps what t_hold_crash() needs */
	bool inline_done;               /* completes inside submit() */
	bool shuffle;                   /* completes in random order */
	bool unstable;                  /* memory may change in flight */
	bool direct_reads;              /* a read may be in flight beside a write of the same bytes */
	uint64_t seed;                  /* of shuffle and jitter */
	uint64_t latency_ns, jitter_ns; /* each request takes so long, and up to so much more */
	uint64_t bytes_per_second;      /* 0 = no limit */
};

struct t_hold *t_hold_create(const struct t_hold_params *params);       /* NULL: all defaults */
void t_hold_free(struct t_hold *hold);                  /* after all its devices are gone */
struct iomap_device *t_hold_device(struct t_hold *hold); /* iomap_device_close() it */
unsigned t_hold_devices(struct t_hold *hold);           /* that exist now */

/* Rules. A request is matched by operation and range; flushes match by operation alone. */
enum t_hold_action {
	T_HOLD_PARK,                    /* keep until t_hold_release() */
	T_HOLD_FAIL,                    /* value: errno (positive); nothing is transferred */
	T_HOLD_SHORT,                   /* value: bytes that are transferred */
	T_HOLD_DELAY,                   /* value: nanoseconds */
	T_HOLD_REFUSE,                  /* value: errno (positive), returned by submit() or flush() itself */
};

#define T_HOLD_READ     (1U << IOMAP_REQ_READ)
#define T_HOLD_WRITE    (1U << IOMAP_REQ_WRITE)
#define T_HOLD_FLUSH    (1U << IOMAP_REQ_FLUSH)

struct t_hold_rule {
	unsigned ops;                   /* T_HOLD_READ | … */
	uint64_t pos, len;              /* len 0: everywhere from pos */
	enum t_hold_action action;
	int64_t value;
	unsigned skip;                  /* let so many matches through first */
	unsigned times;                 /* then act so many times, 0 = always */
};

unsigned t_hold_rule(struct t_hold *hold, const struct t_hold_rule *rule);      /* its number */
unsigned t_hold_acted(struct t_hold *hold, unsigned rule);
void t_hold_heal(struct t_hold *hold);                  /* no more rules but T_HOLD_PARK; those go by release */

void t_hold_fail(struct t_hold *hold, unsigned ops, uint64_t pos, uint64_t len, int err);      /* always */
void t_hold_fail_nth(struct t_hold *hold, unsigned ops, unsigned n, int err);  /* n from 1, once; numbered rule */

/* Holding. */
void t_hold_park(struct t_hold *hold, unsigned ops, uint64_t pos, uint64_t len);
bool t_hold_wait_parked(struct t_hold *hold, unsigned n);       /* until n are kept; false after 10 s */
unsigned t_hold_parked(struct t_hold *hold);
void t_hold_release(struct t_hold *hold);               /* no more parking; all go on, oldest first */
void t_hold_release_reverse(struct t_hold *hold);       /* … newest first */

/* submit() number 1, 2, … takes at most counts[0], counts[1], … requests; then no limit. */
void t_hold_accept(struct t_hold *hold, const unsigned *counts, unsigned nr);

/* Space: from now on at most so many bytes may be allocated, in units of block; UINT64_MAX = no limit (default). */
void t_hold_set_space(struct t_hold *hold, uint64_t bytes);
uint64_t t_hold_allocated(struct t_hold *hold);
void t_hold_fail_allocate(struct t_hold *hold, int err);        /* each allocate() from now on, whatever mode; 0: none */

/* What was requested. */
struct t_hold_entry {
	unsigned op;
	uint64_t pos, len;
	int64_t result;
	uint64_t first_word;            /* first eight bytes of its memory when it was done */
};

struct t_hold_count {
	uint64_t reads, writes, flushes;                /* completed, well or not */
	uint64_t read_bytes, written_bytes;             /* completed well */
	uint64_t errors;
	uint64_t inflight, inflight_peak;
	uint64_t submitted;                             /* reads and writes taken */
	uint64_t set_sizes, allocates;
};

void t_hold_counts(struct t_hold *hold, struct t_hold_count *out);
unsigned t_hold_log(struct t_hold *hold, struct t_hold_entry *out, unsigned max);      /* since t_hold_log_clear() */
void t_hold_log_clear(struct t_hold *hold);
const char *t_hold_bad(struct t_hold *hold);            /* the first broken rule of device.h in words, or NULL */

/* The store itself, as it would be read now. */
uint64_t t_hold_size(struct t_hold *hold);
void t_hold_peek(struct t_hold *hold, void *buf, uint64_t len, uint64_t pos);  /* zeros past the end */
void t_hold_peek_durable(struct t_hold *hold, void *buf, uint64_t len, uint64_t pos);  /* as t_hold_crash_strict() has it */
uint64_t t_hold_durable_size(struct t_hold *hold);
void t_hold_poke(struct t_hold *hold, const void *buf, uint64_t len, uint64_t pos);    /* durable at once */

/*
 * The store after a power cut now: a new one with the same params, no rules. What no finished flush covers is old or new
 * by 512-byte sector; the size is that of some moment since the flush, and what made it grow to there is written.
 * Without volatile_cache all that was completed is there. The old store goes on.
 */
struct t_hold *t_hold_crash(struct t_hold *hold, uint64_t seed);
struct t_hold *t_hold_crash_strict(struct t_hold *hold);        /* nothing but what is durable */

#endif
