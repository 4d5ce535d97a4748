/*
 * wait.c - sleeping until a word of some object changes
 *
 * The waiter announces itself before it looks, the waker changes the state before it looks whether anybody
 * announced himself. One of the two therefore sees the other:
 *
 *      waiter, under the bucket's lock         waker
 *      set the waiters bit                     change the state (release)
 *      full fence                              full fence, or the bit came back from the same atomic operation
 *      done()? else sleep, lock dropped        bit set? wait_wake(): clear it, wake the bucket, under its lock
 *
 * A waker that sees the bit cannot wake too early, since it needs the lock the waiter holds until it sleeps.
 * Objects that share a bucket wake each other; a waiter that is not done sets its bit again and sleeps on. A
 * bit that outlives its waiters costs one needless wake.
 *
 * Invariants: whoever sleeps here has its bit set since it last looked, or its bucket is being woken.
 * Locking:    bucket->lock, a leaf: done() takes no lock, though it may try one.
 * Kernel:     mm/filemap.c, folio_wait_bit(). Differs: woken waiters compete, nothing is handed over.
 */
#include <assert.h>
#include "atomic.h"
#include "mutant.h"
#include "wait.h"

static_assert((WAIT_BUCKETS & (WAIT_BUCKETS - 1)) == 0, "a bucket is picked by bits of a hash");

static struct wait_bucket *bucket_of(struct wait_table *t, const void *object)
{
	uint64_t hash = ((uint64_t)(uintptr_t)object >> 6) * UINT64_C(0x9e3779b97f4a7c15);

	return &t->bucket[(hash >> 32) & (WAIT_BUCKETS - 1)];
}

void wait_table_init(struct wait_table *t)
{
	for (unsigned i = 0; i < WAIT_BUCKETS; i++) {
		mutex_init(&t->bucket[i].lock, LOCK_WAIT);
		cond_init(&t->bucket[i].cond);
	}
}

void wait_table_fini(struct wait_table *t)
{
	for (unsigned i = 0; i < WAIT_BUCKETS; i++) {
		cond_fini(&t->bucket[i].cond);
		mutex_fini(&t->bucket[i].lock);
	}
}

void wait_until(struct wait_table *t, const void *object, _Atomic uint32_t *flags, uint32_t waiters_bit,
		bool (*done)(void *arg), void *arg)
{
	struct wait_bucket *b = bucket_of(t, object);

	might_sleep();
	mutex_lock(&b->lock);
	for (;;) {
		or_relaxed(flags, waiters_bit);         /* relaxed: the fence below orders it */
		fence_full();                           /* pairs with the waker, see the picture above */
		if (done(arg))
			break;
		cond_wait(&b->cond, &b->lock);
	}
	mutex_unlock(&b->lock);
}

void wait_wake(struct wait_table *t, const void *object, _Atomic uint32_t *flags, uint32_t waiters_bit)
{
	struct wait_bucket *b = bucket_of(t, object);

	mutex_lock(&b->lock);
	and_relaxed(flags, ~waiters_bit);               /* relaxed: waiters set it under the same lock */
	(MUTANT(M_WAKE_ONE) ? cond_signal : cond_broadcast)(&b->cond);
	mutex_unlock(&b->lock);
}

void io_wait_init(struct io_wait *w)
{
	mutex_init(&w->lock, LOCK_WAIT);
	cond_init(&w->cond);
	w->pending = 0;
	w->error = 0;
}

void io_wait_fini(struct io_wait *w)
{
	mutex_fini(&w->lock);
	cond_fini(&w->cond);
}

void io_wait_add(struct io_wait *w)
{
	mutex_lock(&w->lock);
	w->pending++;
	mutex_unlock(&w->lock);
}

void io_wait_done(struct io_wait *w, int error)
{
	mutex_lock(&w->lock);
	if (error && !w->error)
		w->error = error;
	if (!--w->pending)
		cond_signal(&w->cond);
	mutex_unlock(&w->lock);
}

void io_wait_ended(struct io_wait *w)
{
	might_sleep();
	mutex_lock(&w->lock);
	while (w->pending)
		cond_wait(&w->cond, &w->lock);
	mutex_unlock(&w->lock);
}

int io_wait_for_all(struct io_wait *w)
{
	int error;

	might_sleep();
	mutex_lock(&w->lock);
	while (w->pending)
		cond_wait(&w->cond, &w->lock);
	error = w->error;
	w->error = 0;
	mutex_unlock(&w->lock);
	return error;
}
