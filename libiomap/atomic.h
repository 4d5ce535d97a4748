/*
 * atomic.h - C11 atomics with the memory order in the name
 *
 * Nothing else in the library names a memory_order. Each access is a point where the simulator may switch threads, so
 * the hook stands in one place, here.
 */
#ifndef IOMAP_ATOMIC_H
#define IOMAP_ATOMIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef IOMAP_SIM
extern uint64_t sim_points_left;                /* until the scheduler looks */
void sim_look(void);
static inline void sim_atomic_point(void)
{
	if (--sim_points_left == 0)
		sim_look();
}
#define ATOMIC_POINT() sim_atomic_point()
#else
#define ATOMIC_POINT() ((void)0)
#endif

#define load_relaxed(p)          (ATOMIC_POINT(), atomic_load_explicit((p), memory_order_relaxed))
#define load_acquire(p)          (ATOMIC_POINT(), atomic_load_explicit((p), memory_order_acquire))
#define store_relaxed(p, v)      (ATOMIC_POINT(), atomic_store_explicit((p), (v), memory_order_relaxed))
#define store_release(p, v)      (ATOMIC_POINT(), atomic_store_explicit((p), (v), memory_order_release))
#define add_relaxed(p, v)        (ATOMIC_POINT(), atomic_fetch_add_explicit((p), (v), memory_order_relaxed))
#define add_acq_rel(p, v)        (ATOMIC_POINT(), atomic_fetch_add_explicit((p), (v), memory_order_acq_rel))
#define sub_relaxed(p, v)        (ATOMIC_POINT(), atomic_fetch_sub_explicit((p), (v), memory_order_relaxed))
#define sub_acq_rel(p, v)        (ATOMIC_POINT(), atomic_fetch_sub_explicit((p), (v), memory_order_acq_rel))
#define or_relaxed(p, v)         (ATOMIC_POINT(), atomic_fetch_or_explicit((p), (v), memory_order_relaxed))
#define or_acquire(p, v)         (ATOMIC_POINT(), atomic_fetch_or_explicit((p), (v), memory_order_acquire))
#define or_release(p, v)         (ATOMIC_POINT(), atomic_fetch_or_explicit((p), (v), memory_order_release))
#define and_relaxed(p, v)        (ATOMIC_POINT(), atomic_fetch_and_explicit((p), (v), memory_order_relaxed))
#define and_release(p, v)        (ATOMIC_POINT(), atomic_fetch_and_explicit((p), (v), memory_order_release))
#define and_acq_rel(p, v)        (ATOMIC_POINT(), atomic_fetch_and_explicit((p), (v), memory_order_acq_rel))
#define exchange_acq_rel(p, v)   (ATOMIC_POINT(), atomic_exchange_explicit((p), (v), memory_order_acq_rel))
/* *old_p holds what was expected and, on failure, gets what was found. */
#define cmpxchg_acquire(p, old_p, v) \
	(ATOMIC_POINT(), atomic_compare_exchange_strong_explicit((p), (old_p), (v), memory_order_acquire, \
								 memory_order_relaxed))
#define cmpxchg_relaxed(p, old_p, v) \
	(ATOMIC_POINT(), atomic_compare_exchange_strong_explicit((p), (old_p), (v), memory_order_relaxed, \
								 memory_order_relaxed))
#define fence_acquire()          (ATOMIC_POINT(), atomic_thread_fence(memory_order_acquire))
#define fence_release()          (ATOMIC_POINT(), atomic_thread_fence(memory_order_release))
#define fence_full()             (ATOMIC_POINT(), atomic_thread_fence(memory_order_seq_cst))

#endif
