/*
 * lockdep.h - the order of locks, checked at every lock in debug and simulation builds
 *
 * A thread may take a lock only while every lock it holds has a lower rank. Locks of the same rank may not nest, with one
 * exception: folio locks, in ascending order of @order (the index in the file). trylock never deadlocks, so it is recorded but not
 * checked. Ranks below LOCK_SHORT may be held over a sleep; might_sleep() checks that no short lock is held.
 */
#ifndef IOMAP_LOCKDEP_H
#define IOMAP_LOCKDEP_H

#include <stdbool.h>
#include <stdint.h>

enum lock_rank {
	LOCK_APPEND = 5,        /* inode->append_lock: one APPEND call at a time */
	LOCK_INODE = 10,        /* inode->rwsem: size, and what changes size or mapping */
	LOCK_INVALIDATE = 20,   /* mapping->invalidate_lock: nobody adds folios to a range being cut */
	LOCK_EXTEND = 25,       /* inode->extend_lock: one writer beyond the device's size; taken before folio locks */
	LOCK_FOLIO = 30,        /* folio lock; several: ascending index in one mapping */
	LOCK_FLUSH = 35,        /* inode->flush_lock: one shared flush at a time */
	LOCK_SHORT = 40,        /* from here on: short locks, never held over I/O, allocation, a callback or a sleep */
	LOCK_CACHE = 40,        /* cache->inode_lock */
	LOCK_WB_LIST = 42,      /* wb->list_lock: dirty inodes, work */
	LOCK_TREE = 50,         /* mapping->tree_lock */
	LOCK_STATE = 60,        /* folio->state_lock (a bit in the descriptor) */
	LOCK_RECLAIM = 62,      /* reclaim queues */
	LOCK_DEVICE = 70,       /* device queues */
	LOCK_LEAF = 75,         /* arena, mem, bandwidth, ranges, ghosts, copy pool, direct reads: never two at once */
	LOCK_WAIT = 80,         /* wait buckets: nothing is taken inside */
};

#ifdef IOMAP_DEBUG
#define LOCKDEP_MAX_HELD 1024
/* The locks one thread holds, oldest first. Lives as long as the thread; plat_lockdep_stack() finds it. */
struct lockdep_stack {
	unsigned nr;
	unsigned outer;                         /* so many of them are those of the caller of a callback */
	struct lockdep_held { const void *lock; uint64_t order; enum lock_rank rank; } held[LOCKDEP_MAX_HELD];
};

/* Before a lock is waited for, or after a trylock has got it. @order is the file index for folio locks, else 0. */
void lockdep_acquire(enum lock_rank rank, const void *lock, uint64_t order, bool try_only);
void lockdep_release(const void *lock);
void lockdep_assert_held(const void *lock);
void lockdep_assert_none_held(void);            /* no lock at all, of any rank */
/*
 * The lock passes from this thread to an I/O completion, which will unlock it: without lockdep_release(), or after having
 * adopted it by lockdep_acquire(..., try_only = true). Releasing what this thread does not hold is a bug.
 */
void lockdep_forget(const void *lock);
/*
 * A device's callback begins that may use other files of the cache: their locks have nothing to do with those held now, since
 * no device writes to a file that is stored on itself. Returns what to hand to lockdep_callback_end().
 */
unsigned lockdep_callback_begin(void);
void lockdep_callback_end(unsigned outer);
void might_sleep(void);
const char *lockdep_rank_name(enum lock_rank rank);      /* for messages */
#else
static inline void lockdep_acquire(enum lock_rank rank, const void *lock, uint64_t order, bool try_only)
{
	(void)rank; (void)lock; (void)order; (void)try_only;
}
static inline void lockdep_release(const void *lock) { (void)lock; }
static inline void lockdep_assert_held(const void *lock) { (void)lock; }
static inline void lockdep_assert_none_held(void) { }
static inline void lockdep_forget(const void *lock) { (void)lock; }
static inline unsigned lockdep_callback_begin(void) { return 0; }
static inline void lockdep_callback_end(unsigned outer) { (void)outer; }
static inline void might_sleep(void) { }
#endif

#endif
