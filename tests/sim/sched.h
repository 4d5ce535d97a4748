/*
 * sched.h - running a world, and what the other side of platform.h needs from its scheduler
 */
#ifndef IOMAP_SIM_SCHED_H
#define IOMAP_SIM_SCHED_H

#include "lockdep.h"
#include "sim.h"

#define SIM_TLS 8                       /* keys a thread may have values for */

enum sim_end { SIM_DONE, SIM_FAILED, SIM_POWER_OFF };

struct sim_run {
	uint64_t seed;                  /* of the schedule */
	uint64_t max_steps;             /* more is a livelock */
	uint64_t power_off_at;          /* step at which the power goes; 0: never */
	uint64_t fail_nth[SIM_FAULTS];  /* the n-th such event fails, from 1; 0: none */
	unsigned fail_chance[SIM_FAULTS];       /* … and each with so many chances in 1024 */
	uint64_t fail_after;            /* events before this step count, but do not fail */
	bool trace;                     /* sim_trace() to stdout */
};

struct sim_result {
	enum sim_end end;
	uint64_t steps, switches, hash, faults;
	uint64_t events[SIM_FAULTS];    /* how often sim_fault() was asked */
	char report[8192];              /* of a failure */
};

/* Runs @fn as the first thread of a new world until no thread but daemons is left, or it fails, or the power goes. */
void sim_run(const struct sim_run *run, void (*fn)(void *arg), void *arg, struct sim_result *out);

/* What a thread has of its own. */
struct sim_local {
	struct lockdep_stack *locks;
	struct { uint64_t key; void *value; } tls[SIM_TLS];
	unsigned rcu_nesting;
	uint64_t rcu_sections;          /* outermost ones ended */
};
struct sim_local *sim_local(struct sim_thread *t);
/* Calls @fn for every thread alive. */
void sim_for_each_thread(void (*fn)(struct sim_thread *t, void *arg), void *arg);
/* Called on each thread's end, on its own stack. */
extern void (*sim_thread_exit)(void);

void platform_sim_start(void);          /* platform-sim.c, in a fresh world */

/* heap.c: memory of a world */
void  heap_reset(void);                 /* everything allocated since the last reset is gone */
void *heap_alloc(size_t size, size_t align);    /* not cleared in any particular way; NULL: the area is used up */
void  heap_free(void *p);
bool  heap_owns(const void *p);
uint64_t heap_used(void);               /* bytes allocated and not freed */
extern bool heap_is_on;                 /* malloc() and its like take from here */

#endif
