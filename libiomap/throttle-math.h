/*
 * throttle-math.h - the arithmetic of the control loop that slows writers down
 *
 * Nothing here locks, sleeps, allocates, asks the time or remembers anything: throttle.c, bdi.c and flusher.c
 * own the state and the locks, and hand in what they know. Levels and totals are in units of 4096 bytes, rates
 * in units a second, times in ms. Callers count in bytes: a level becomes units rounded up, a monotonic total
 * rounded down, so that no byte is lost. With limits below 2^32 units, rates below 2^28 (1 TiB/s) and
 * differences of totals below 2^54 no product here overflows; those with a position are 128 bits wide.
 */
#ifndef IOMAP_THROTTLE_MATH_H
#define IOMAP_THROTTLE_MATH_H

#include "util.h"

#define THROTTLE_HZ             1000U           /* ticks a second: a tick is 1 ms */
#define THROTTLE_UNIT_BYTES     4096U
#define THROTTLE_PAUSE_MAX_MS   200U            /* no single sleep is longer */
#define THROTTLE_POLL_MIN       32U             /* units dirtied between two looks, while that is short enough */
#define THROTTLE_EXCEEDED_POLL  8U              /* the same while the device's writers are over its limit */
#define BANDWIDTH_INTERVAL_MS   200U            /* estimates are renewed about this often */
#define BANDWIDTH_PERIOD_SHIFT  12              /* and remember 2^12 ms */
#define BANDWIDTH_IDLE_MS       1000U           /* after such a silence they start afresh */
#define BANDWIDTH_INITIAL       25600U          /* 100 MiB/s */
#define FPROP_PERIOD_MS         3000U           /* after which a completion weighs half */
#define POS_SHIFT               10
#define POS_ONE                 (1U << POS_SHIFT)       /* position ratio 1.0 */
#define WRITEBACK_CHUNK_MIN     1024U           /* 4 MiB */

/* --- Limits: how much may be dirty ------------------------------------------------------------------------ */

struct dirty_limits { uint64_t thresh, bg; };   /* bg < thresh, or both 0 */

/* Rounds bytes up to units; a background limit that is not below the limit becomes half of it. */
struct dirty_limits dirty_limits_from_bytes(uint64_t dirty_bytes, uint64_t bg_bytes);
struct dirty_limits dirty_limits_from_units(uint64_t thresh, uint64_t bg);
/* Up to here writers are not slowed at all. */
uint64_t dirty_freerun(struct dirty_limits l);
/* @tracked goes down slowly (dirty_limit_step()), so that a lower limit does not stop everybody at once. */
uint64_t dirty_hard_limit(struct dirty_limits l, uint64_t tracked);
/* The level the loop steers towards: half way from free run to @hard. */
uint64_t dirty_setpoint(struct dirty_limits l, uint64_t hard);
/* The next value of the tracked limit. Comes with a full update of the rates, see below. */
uint64_t dirty_limit_step(uint64_t limit, uint64_t thresh, uint64_t dirty);
/* What a writer in free run may dirty before it looks again: about the square root of the room left. */
uint64_t poll_interval(uint64_t dirty, uint64_t thresh);

/* --- Shares: which part of the limit is whose device's ---------------------------------------------------- */

/* Completions of all devices under one limit. Each device has its fprop_local; all halve every period. */
struct fprop_domain {
	uint64_t events, period;
	uint64_t timer_ms;              /* when the period ends; 0: there is nothing to age */
};
struct fprop_local { uint64_t events, period; };        /* aged when touched */
struct fraction { uint64_t num, den; };                 /* num <= den, den > 0 */

void fprop_domain_init(struct fprop_domain *d);
void fprop_local_init(struct fprop_local *l, const struct fprop_domain *d);
/* @nr units were completed (well or not) by @l's device. Starts the domain's timer if it is off. */
void fprop_add(struct fprop_domain *d, struct fprop_local *l, uint64_t nr, uint64_t now);
void fprop_age(struct fprop_local *l, const struct fprop_domain *d);
/* Lets @periods pass; false: there is nothing left to age. */
bool fprop_new_period(struct fprop_domain *d, uint64_t periods);
/* Ends the periods that are over by @now. May be called at any time, late or early. */
void fprop_timer(struct fprop_domain *d, uint64_t now);
struct fraction fprop_fraction(const struct fprop_domain *d, struct fprop_local *l);

/* @f's part of a limit. */
uint64_t wb_share(uint64_t limit, struct fraction f);
/* The background limit that belongs to a device's part of the limit. */
uint64_t wb_share_bg(uint64_t wb_thresh, struct dirty_limits l);

/* --- Position: how far from the set point ----------------------------------------------------------------- */

/* 1 + ((setpoint - dirty) / (limit - setpoint))^3 within 0 to 2, times POS_ONE; setpoint <= limit. */
uint64_t pos_poly(uint64_t setpoint, uint64_t dirty, uint64_t limit);

struct pos_input {
	struct dirty_limits limits;
	uint64_t hard, dirty;                   /* of all devices together */
	uint64_t wb_thresh, wb_dirty, avg_bw;   /* of the writer's device */
};
/*
 * By what to multiply the device's rate, times POS_ONE: 0 at the hard limit, may exceed 2 where a device runs
 * dry.
 */
uint64_t pos_ratio(const struct pos_input *in);

/* --- Rates: how fast the device cleans, how fast each writer may dirty ------------------------------------ */

struct wb_rate {
	uint64_t write_bw, avg_bw;              /* avg_bw is smoothed twice, and never 0 */
	uint64_t dirty_ratelimit;               /* what one writer may dirty a second at position 1.0; never 0 */
	uint64_t balanced_ratelimit;            /* what it should become, before smoothing */
	uint64_t written_stamp, dirtied_stamp;  /* the totals at the last update */
	uint64_t stamp_ms;                      /* and when that was */
};

void wb_rate_init(struct wb_rate *r, uint64_t written_total, uint64_t dirtied_total, uint64_t now);
/* An update is due by time. */
bool wb_rate_is_due(const struct wb_rate *r, uint64_t now);
/* The last one is so long ago that, if no I/O is in flight, the device was idle: restart. */
bool wb_rate_is_stale(const struct wb_rate *r, uint64_t now);
/* Forgets the time since the last update: idleness must not look like a slow device. */
void wb_rate_restart(struct wb_rate *r, uint64_t written_total, uint64_t dirtied_total, uint64_t now);
/*
 * A full update is both, in this order: the first uses the stamps that the second moves. Alone, the second is
 * right too (an inode's last I/O ended, a chunk was written). @dirty and @setpoint are those of pos_ratio(),
 * which gave @pos.
 */
void wb_rate_update_ratelimit(struct wb_rate *r, uint64_t pos, uint64_t dirtied_total, uint64_t dirty,
			      uint64_t setpoint, uint64_t now);
void wb_rate_update_bandwidth(struct wb_rate *r, uint64_t written_total, uint64_t dirtied_total, uint64_t now);
/* What one writer may dirty a second, here and now; 0 at the hard limit. */
uint64_t wb_task_rate(const struct wb_rate *r, uint64_t pos);

/* --- Pauses: who sleeps how long -------------------------------------------------------------------------- */

struct pause_targets {
	uint64_t max_ms;        /* no longer: the device must not run out of work meanwhile */
	uint64_t min_ms;        /* no shorter: not worth a sleep, the debt is carried on */
	uint64_t next_units;    /* dirty so much before looking again, and the sleep will be about right */
};

uint64_t pause_max(uint64_t avg_bw, uint64_t wb_dirty);
struct pause_targets pause_targets(uint64_t avg_bw, uint64_t ratelimit, uint64_t max_ms, uint64_t task_rate);

/* What a thread owes. Its own: no lock. */
struct throttle_task {
	uint64_t nr_dirtied;            /* units dirtied and not yet paid for */
	uint64_t nr_dirtied_pause;      /* look at the limits when nr_dirtied gets here */
	uint64_t paused_when_ms;        /* up to when it has paid; may lie ahead; 0: never paused */
};

enum throttle_verdict {
	THROTTLE_RETURN,        /* go on writing */
	THROTTLE_AGAIN,         /* would sleep, but must not: -EAGAIN; nothing changed */
	THROTTLE_SLEEP,         /* sleep *pause_ms; the task is as it is to be afterwards */
};

void throttle_task_init(struct throttle_task *t);
/* The debt at which to look, given whether the device's writers are over its limit. */
uint64_t throttle_entry_limit(const struct throttle_task *t, bool dirty_exceeded);
/*
 * Below free run: all is paid, look again after poll_interval() units. The caller clears the device's
 * dirty_exceeded.
 */
void throttle_free_run(struct throttle_task *t, uint64_t poll, uint64_t now);
/*
 * What a writer owing @pages_dirtied units does. After THROTTLE_SLEEP with @task_rate 0 (over the hard limit)
 * the caller looks at the limits again instead of going on.
 */
enum throttle_verdict throttle_decide(struct throttle_task *t, uint64_t pages_dirtied, uint64_t task_rate,
				      const struct pause_targets *targets, bool async, uint64_t now,
				      uint64_t *pause_ms);

/* --- Chunks: how much of one inode to write before the next gets its turn --------------------------------- */

/*
 * About half a second of device time, at most an eighth of the limit, a whole number of @min_chunk; @left:
 * UINT64_MAX is no end.
 */
uint64_t writeback_chunk(uint64_t avg_bw, uint64_t dirty_limit, uint64_t left, uint64_t min_chunk);

#endif
