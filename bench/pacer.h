/*
 * pacer.h - one thread's share of a wanted rate, as a schedule that does not wait for anybody
 *
 * Open loop: the n-th operation is due at a moment fixed in advance, whether or not the one before it is done.
 * A thread that falls behind goes on without a pause until it has caught up, and its lag says how far behind it
 * was: a closed loop would simply ask for less when the thing measured is slow, and so hide it. The lag is kept
 * apart from the latency of the calls, which is the caller's to measure.
 */
#ifndef BENCH_PACER_H
#define BENCH_PACER_H

#include <stdbool.h>
#include <stdint.h>

/* Belongs to one thread. */
struct pacer {
	uint64_t start_ns, end_ns;
	double   period_ns, phase_ns;
	uint64_t next;                  /* the operation that is due next */
	uint64_t lag_max_ns;            /* the latest that any operation began after its time */
};

/*
 * Thread @index of @nr_threads does its share of @rate operations a second from @start_ns until @end_ns; the
 * threads' schedules interleave evenly.
 */
void pacer_init(struct pacer *p, uint64_t start_ns, uint64_t end_ns, double rate, unsigned index,
		unsigned nr_threads);

/* Sleeps until the next operation is due. False when the schedule or the time is over. */
bool pacer_wait(struct pacer *p);

/* Lets the calling thread wake up on time: the kernel may otherwise be 50 us late on purpose. */
void pacer_thread_setup(void);

#endif
