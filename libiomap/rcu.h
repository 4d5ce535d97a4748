/*
 * rcu.h - read-copy-update, the only file that includes liburcu; the simulator brings its own
 *
 * The bp flavour: no thread registers itself. ThreadSanitizer does not see liburcu's barriers, so the wrappers tell it about
 * what they order: what was done before rcu_free(), and in the read sections before the grace period, comes before the
 * callback; callbacks come before the end of rcu_drain(). (It hears of all sections that ended, not only of those the
 * grace period waited for: a callback that runs too early is found by its address being used after free.)
 */
#ifndef IOMAP_RCU_H
#define IOMAP_RCU_H

#include "atomic.h"

#ifdef IOMAP_SIM
#include "rcu-sim.h"
#else
#include <urcu-bp.h>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define IOMAP_TSAN 1
#endif
#endif
#ifdef __SANITIZE_THREAD__
#define IOMAP_TSAN 1
#endif

#ifdef IOMAP_TSAN
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
#define RCU_TSAN_ACQUIRE(p) __tsan_acquire(p)
#define RCU_TSAN_RELEASE(p) __tsan_release(p)
#else
#define RCU_TSAN_ACQUIRE(p) ((void)(p))
#define RCU_TSAN_RELEASE(p) ((void)(p))
#endif
/* Two addresses that are the same in every file. */
#define RCU_TSAN_SECTIONS  ((void *)urcu_bp_call_rcu)
#define RCU_TSAN_CALLBACKS ((void *)urcu_bp_barrier)

static inline void rcu_enter(void) { urcu_bp_read_lock(); }
static inline void rcu_exit(void)
{
	RCU_TSAN_RELEASE(RCU_TSAN_SECTIONS);
	urcu_bp_read_unlock();
}

/* The callback runs in liburcu's own thread after a grace period; it must call rcu_callback_begin(head) first. */
static inline void rcu_free(struct rcu_head *head, void (*fn)(struct rcu_head *head))
{
	RCU_TSAN_RELEASE(head);
	urcu_bp_call_rcu(head, fn);
}
static inline void rcu_callback_begin(struct rcu_head *head)
{
	RCU_TSAN_ACQUIRE(head);
	RCU_TSAN_ACQUIRE(RCU_TSAN_SECTIONS);
}

#ifdef IOMAP_TSAN
/* The last callback of a drain: one thread runs them all, in order. */
static inline void rcu_tsan_callbacks_ran(struct rcu_head *head)
{
	(void)head;
	RCU_TSAN_RELEASE(RCU_TSAN_CALLBACKS);
}
#endif

/* Waits until every callback queued before has run. Sleeps; never under a lock. */
static inline void rcu_drain(void)
{
#ifdef IOMAP_TSAN
	struct rcu_head last;

	urcu_bp_call_rcu(&last, rcu_tsan_callbacks_ran);
#endif
	urcu_bp_barrier();
	RCU_TSAN_ACQUIRE(RCU_TSAN_CALLBACKS);
}

/*
 * Around fork(), from the handlers in platform: liburcu's callback thread pauses, then its registry holds still. Without
 * them rcu_drain() in a forked child waits for a thread that does not exist there.
 */
static inline void rcu_fork_prepare(void)
{
	urcu_bp_call_rcu_before_fork();
	urcu_bp_before_fork();
}
static inline void rcu_fork_parent(void)
{
	urcu_bp_after_fork_parent();
	urcu_bp_call_rcu_after_fork_parent();
}
static inline void rcu_fork_child(void)
{
	urcu_bp_after_fork_child();
	urcu_bp_call_rcu_after_fork_child();
}

#endif /* IOMAP_SIM */
#endif
