/*
 * lockdep.c - finds a wrong order of locks the first time it is used, not the first time it deadlocks
 *
 * Each thread keeps a list of the locks it holds. Taking one more compares its rank with every rank in the
 * list: since all threads climb the same ladder, no cycle of waits can close. That needs no graph and no
 * history, because the ladder is written down in enum lock_rank. What a trylock got is listed as well: it
 * never waited, but what is taken after it may.
 *
 * Invariants: a thread's list holds what it holds, in the order it was taken; releases may come in any order.
 * Locking:    none; a list is its thread's own.
 * Kernel:     kernel/locking/lockdep.c. Differs: ranks are declared instead of learned.
 */
#include "lockdep.h"

#ifdef IOMAP_DEBUG
#include <stdio.h>
#include "bug.h"
#include "platform.h"

const char *lockdep_rank_name(enum lock_rank rank)
{
	switch (rank) {
	case LOCK_APPEND:       return "append";
	case LOCK_INODE:        return "inode";
	case LOCK_INVALIDATE:   return "invalidate";
	case LOCK_EXTEND:       return "extend";
	case LOCK_FOLIO:        return "folio";
	case LOCK_FLUSH:        return "flush";
	case LOCK_CACHE:        return "cache";
	case LOCK_WB_LIST:      return "wb_list";
	case LOCK_TREE:         return "tree";
	case LOCK_STATE:        return "state";
	case LOCK_RECLAIM:      return "reclaim";
	case LOCK_DEVICE:       return "device";
	case LOCK_LEAF:         return "leaf";
	case LOCK_WAIT:         return "wait";
	}
	return "?";
}

static _Noreturn void violation(const char *what, enum lock_rank rank, const void *lock, uint64_t order,
				const struct lockdep_held *held)
{
	char text[256];

	snprintf(text, sizeof(text), "lockdep: %s: taking %s (rank %d, lock %p, order %llu) while holding %s "
		 "(rank %d, lock %p, order %llu)", what, lockdep_rank_name(rank), (int)rank, lock, (unsigned long long)order,
		 lockdep_rank_name(held->rank), (int)held->rank, held->lock, (unsigned long long)held->order);
	bug_report(__FILE__, __LINE__, text);
}

static _Noreturn void complain(const char *what, const void *lock, const struct lockdep_held *held)
{
	char text[256];

	if (held)
		snprintf(text, sizeof(text), "lockdep: %s: holding %s (rank %d, lock %p, order %llu)", what,
			 lockdep_rank_name(held->rank), (int)held->rank, held->lock, (unsigned long long)held->order);
	else
		snprintf(text, sizeof(text), "lockdep: %s: lock %p", what, lock);
	bug_report(__FILE__, __LINE__, text);
}

static struct lockdep_held *find(struct lockdep_stack *s, const void *lock)
{
	for (unsigned i = s->nr; i-- > 0; )
		if (s->held[i].lock == lock)
			return &s->held[i];
	return NULL;
}

static void drop(struct lockdep_stack *s, struct lockdep_held *h)
{
	struct lockdep_held *last = &s->held[--s->nr];

	if (h < &s->held[s->outer])
		s->outer--;
	for (; h < last; h++)
		h[0] = h[1];
}

void lockdep_acquire(enum lock_rank rank, const void *lock, uint64_t order, bool try_only)
{
	struct lockdep_stack *s = plat_lockdep_stack();

	for (unsigned i = 0; i < s->nr && !try_only; i++) {
		const struct lockdep_held *h = &s->held[i];

		if (h->lock == lock)
			violation("same lock again", rank, lock, order, h);
		if (i < s->outer && h->rank < LOCK_SHORT)
			continue;
		if (h->rank > rank)
			violation("wrong order", rank, lock, order, h);
		if (h->rank == rank && (rank != LOCK_FOLIO || h->order >= order))
			violation("same rank", rank, lock, order, h);
	}
	if (s->nr == LOCKDEP_MAX_HELD)
		complain("too many locks held", lock, NULL);
	s->held[s->nr++] = (struct lockdep_held){ .lock = lock, .order = order, .rank = rank };
}

void lockdep_release(const void *lock)
{
	struct lockdep_stack *s = plat_lockdep_stack();
	struct lockdep_held *h = find(s, lock);

	if (!h)
		complain("released, but not held by this thread", lock, NULL);
	drop(s, h);
}

void lockdep_forget(const void *lock)
{
	struct lockdep_stack *s = plat_lockdep_stack();
	struct lockdep_held *h = find(s, lock);

	if (!h)
		complain("passed on, but not held by this thread", lock, NULL);
	drop(s, h);
}

void lockdep_assert_held(const void *lock)
{
	if (!find(plat_lockdep_stack(), lock))
		complain("must be held by this thread", lock, NULL);
}

void lockdep_assert_none_held(void)
{
	const struct lockdep_stack *s = plat_lockdep_stack();

	if (s->nr)
		complain("no lock may be held here", NULL, &s->held[s->nr - 1]);
}

unsigned lockdep_callback_begin(void)
{
	struct lockdep_stack *s = plat_lockdep_stack();
	unsigned before = s->outer;

	s->outer = s->nr;
	return before;
}

void lockdep_callback_end(unsigned outer)
{
	struct lockdep_stack *s = plat_lockdep_stack();

	s->outer = outer < s->nr ? outer : s->nr;
}

void might_sleep(void)
{
	const struct lockdep_stack *s = plat_lockdep_stack();

	for (unsigned i = 0; i < s->nr; i++)
		if (s->held[i].rank >= LOCK_SHORT)
			complain("may sleep under a short lock", NULL, &s->held[i]);
}
#else
/* ISO C wants a declaration in every file. */
typedef int lockdep_is_off;
#endif
