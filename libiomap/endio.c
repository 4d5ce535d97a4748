/*
 * endio.c - completions that may sleep
 *
 * An engine's end_io() converts extents and writes metadata: too much for a device's completion, which must not wait. So completed
 * requests of files that have one queue up here for a thread of their own, one a cache, which starts with the first such file. Their blocks
 * stay in flight meanwhile: whoever waits for writeback waits for the engine, too.
 *
 * Locking: endio.lock for the queue; nothing is held over the engine's call.
 * Kernel:  the work queue of iomap_finish_ioends(). Differs: no merging of completed requests.
 */
#include "endio.h"
#include "ioend.h"

static void endio_main(void *arg)
{
	struct iomap_cache *cache = arg;
	struct endio *e = &cache->endio;

	cache_thread_begin(cache);
	mutex_lock(&e->lock);
	while (!e->stop || !list_empty(&e->queue)) {
		struct ioend *io;
		int error;

		if (list_empty(&e->queue)) {
			cond_wait(&e->cond, &e->lock);
			continue;
		}
		io = list_first(&e->queue, struct ioend, node);
		list_del(&io->node);
		mutex_unlock(&e->lock);
		error = io->seen.error;
		if (!load_relaxed(&cache->abandoned)) {         /* the power went: nothing changes any more */
			int ret = io->inode->wb_ops->end_io(&io->seen);

			error = error ? error : ret;
		}
		ioend_finish(io, error);
		mutex_lock(&e->lock);
	}
	mutex_unlock(&e->lock);
	cache_thread_end(cache);
}

void endio_init(struct iomap_cache *cache)
{
	mutex_init(&cache->endio.lock, LOCK_LEAF);
	cond_init(&cache->endio.cond);
	list_init(&cache->endio.queue);
	mutex_init(&cache->endio.start_lock, LOCK_FLUSH);
}

void endio_fini(struct iomap_cache *cache)
{
	mutex_fini(&cache->endio.lock);
	cond_fini(&cache->endio.cond);
	mutex_fini(&cache->endio.start_lock);
}

int endio_start(struct iomap_cache *cache)
{
	struct endio *e = &cache->endio;
	int ret = 0;

	mutex_lock(&e->start_lock);
	if (!e->has_thread) {
		ret = thread_create(&e->thread, "iomap-endio", endio_main, cache);
		e->has_thread = !ret;
	}
	mutex_unlock(&e->start_lock);
	return ret;
}

void endio_stop(struct iomap_cache *cache)
{
	struct endio *e = &cache->endio;

	if (!e->has_thread)
		return;
	mutex_lock(&e->lock);
	e->stop = true;
	cond_signal(&e->cond);
	mutex_unlock(&e->lock);
	thread_join(&e->thread);
	e->has_thread = false;
}

void endio_queue(struct iomap_cache *cache, struct ioend *io)
{
	struct endio *e = &cache->endio;

	mutex_lock(&e->lock);
	list_add_tail(&e->queue, &io->node);
	cond_signal(&e->cond);
	mutex_unlock(&e->lock);
}
