/*
 * sim.h - the scheduler that owns every interleaving
 *
 * One run is a *world*: threads are coroutines on one OS thread, time is a number, memory comes from one area at a fixed
 * address. Whatever the library does at a lock, a wait, an atomic or a system call passes sim_point(), where the scheduler may go
 * on with another thread. All choices come from the seed, so the same seed is the same run, in any process and any build.
 *
 * Layers, each above the next:
 *      main      seeds, command line, totals            shrink    fewer operations of a failing run
 *      world     one run: its parameters, threads       oracle    what a read, an fsync, a crash may show
 *      platform-sim, rcu-sim                            disk      files behind the system calls
 *      sched     coroutines, choices, time              heap      memory
 */
#ifndef IOMAP_SIM_H
#define IOMAP_SIM_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- chance: xoshiro-like streams, one for each matter, so that leaving out operations does not change the disk -- */
struct sim_rng { uint64_t s[2]; };
void     sim_rng_seed(struct sim_rng *r, uint64_t seed, uint64_t stream);
uint64_t sim_rng_next(struct sim_rng *r);
uint64_t sim_below(struct sim_rng *r, uint64_t n);                      /* 0 … n - 1; n 0 gives 0 */
static inline bool sim_chance(struct sim_rng *r, unsigned num, unsigned of) { return sim_below(r, of) < num; }

/* --- threads ---------------------------------------------------------------------------------------------- */
#define SIM_THREADS 64                  /* at most, alive at one time */

struct sim_thread;
/* A new thread, runnable. @daemon: the world may end while it is alive. NULL: too many. */
struct sim_thread *sim_spawn(const char *name, void (*fn)(void *arg), void *arg, bool daemon);
struct sim_thread *sim_self(void);      /* NULL outside a world */
unsigned sim_thread_id(const struct sim_thread *t);     /* by order of creation, from 1 */
bool     sim_thread_ended(const struct sim_thread *t);

/* A place where the scheduler may go on with another thread. Returns at once outside a world and while frozen. */
void sim_point(void);
/* As sim_point(), and this thread gains nothing by going on: somebody else must move first (a spin loop). */
void sim_yield(void);

/* Queues of threads that sleep. Zeroed memory is an empty one. */
struct sim_queue { struct sim_thread *head, *tail; };
/* Sleeps until woken. @why and @what appear in a deadlock report. */
void sim_wait(struct sim_queue *q, const char *why, const void *what);
bool sim_wait_until(struct sim_queue *q, const char *why, const void *what, uint64_t when_ns);  /* false: the time came */
bool sim_wake_one(struct sim_queue *q);         /* a random one; false: nobody sleeps there */
void sim_wake_all(struct sim_queue *q);
bool sim_queue_empty(const struct sim_queue *q);

/* --- time: moves when nobody can run, and now and then although somebody could ----------------------------- */
uint64_t sim_now(void);                 /* ns, starts at one hour */
void     sim_sleep(uint64_t ns);

/* --- a run that went wrong -------------------------------------------------------------------------------- */
/* Ends the world; what was said, and the table of threads, are its result. From any thread of it. */
_Noreturn void sim_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Ends the world as if the power went: no failure, nothing more runs. From any thread of it. */
_Noreturn void sim_power_off(void);
/* A line of the trace; kept only while tracing (--replay). */
void sim_trace(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
bool sim_tracing(void);
/* Adds to the trace hash whatever must be the same in every run of this seed. */
void sim_hash(uint64_t what);

/* While frozen no point switches and no time passes; what would have to sleep fails the run. */
void sim_freeze(void);
void sim_thaw(void);
bool sim_others_hold_short_locks(void);         /* then a checker must not run frozen */

/* --- faults that are counted: the n-th allocation, request, flush, thread start ----------------------------- */
enum sim_fault { SIM_FAULT_ALLOC, SIM_FAULT_READ, SIM_FAULT_WRITE, SIM_FAULT_FLUSH, SIM_FAULT_THREAD, SIM_FAULT_SPACE, SIM_FAULTS };
/* Counts one more such event; true: it is to fail (and is counted as a fault injected). */
bool sim_fault(enum sim_fault what);
void sim_no_more_faults(void);          /* of these, from now on */

#endif
