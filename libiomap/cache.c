/*
 * cache.c - the life of one page cache
 *
 * Public entry points of <iomap/cache.h> but for the checker (check.c) and params from text (params-parse.c). Threads of a
 * cache: one reclaim thread, the helpers, and for each backing device a flusher (and the completion threads of its device).
 *
 * Kernel: the superblock, and /proc/sys/vm.
 */
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "file.h"
#include "endio.h"
#include "flusher.h"
#include "ioend.h"
#include "params.h"
#include "reclaim.h"
#include "sync.h"
#include "throttle.h"
#include "truncate.h"
#include "writeback.h"

#define MEMORY_MIN     (UINT64_C(1) << 20)
#define MEMORY_DEFAULT (UINT64_C(256) << 20)
#define MEMORY_MAX     (UINT64_C(1) << 43)      /* frame numbers are 32 bits */
#define DIRTY_DEFAULT(memory) ((memory) / 5)
#define EXPIRE_DEFAULT_MS 30000
#define WRITEBACK_DEFAULT_MS 5000
#define READAHEAD_DEFAULT (128U << 10)
#define COPY_POOL_MAX  (UINT64_C(8) << 20)
#define ABANDON_WAIT_NS (10 * NS_PER_S)

unsigned iomap_version(void) { return IOMAP_VERSION_NUM; }

void cache_log(struct iomap_cache *cache, int level, const char *fmt, ...)
{
	char line[512];
	va_list args;

	if (!cache->log)
		return;
	va_start(args, fmt);
	vsnprintf(line, sizeof(line), fmt, args);
	va_end(args);
	cache->log(cache->log_priv, level, line);
}

/* --- backing devices -------------------------------------------------------------------------------------- */

static struct wb *find_wb(struct iomap_cache *cache, dev_t dev, struct iomap_device *device)
{
	list_for_each(it, &cache->wbs) {
		struct wb *wb = list_entry(it, struct wb, all);

		if (wb->device == device && (device || wb->dev == dev))
			return wb;
	}
	return NULL;
}

static int make_wb(struct iomap_cache *cache, dev_t dev, struct iomap_device *device, struct wb **out)
{
	struct wb *wb;
	int ret = wb_create(&cache->zone, &cache->peaks, &cache->sums, cache->queue_depth, &wb);

	if (ret)
		return ret;
	wb->owner = cache;
	wb->dev = dev;
	if (device)
		wb->device = device_get(device);
	else
		/* as many reads beside the writes */
		ret = aio_queue_create((unsigned)min_u64(cache->queue_depth * UINT64_C(2), AIO_QUEUE_DEPTH_MAX), &wb->aio);
	if (!ret)
		ret = ioend_pool_init(wb);
	mutex_lock(&cache->throttle.lock);
	fprop_local_init(&wb->share, &cache->throttle.completions);
	mutex_unlock(&cache->throttle.lock);
	if (!ret)
		ret = flusher_start(wb);
	if (ret) {
		wb_destroy(wb);
		return ret;
	}
	*out = wb;
	return 0;
}

int cache_wb_for(struct iomap_cache *cache, dev_t dev, struct iomap_device *device, struct wb **out)
{
	struct wb *made = NULL, *wb;

	for (;;) {
		int ret;

		mutex_lock(&cache->inode_lock);
		wb = find_wb(cache, dev, device);
		if (!wb && made) {
			wb = made;
			made = NULL;
			list_add_tail(&cache->wbs, &wb->all);
		}
		if (wb)
			add_relaxed(&wb->nr_inodes, 1);
		mutex_unlock(&cache->inode_lock);
		if (wb)
			break;
		ret = make_wb(cache, dev, device, &made);
		if (ret)
			return ret;
	}
	if (made) {
		flusher_stop(made);
		wb_destroy(made);
	}
	*out = wb;
	return 0;
}

void cache_reap_wbs(struct iomap_cache *cache)
{
	for (;;) {
		struct wb *idle = NULL;

		mutex_lock(&cache->inode_lock);
		list_for_each(it, &cache->wbs) {
			struct wb *wb = list_entry(it, struct wb, all);

			if (wb->device && !load_acquire(&wb->nr_inodes)) {
				idle = wb;
				list_del(&wb->all);
				break;
			}
		}
		mutex_unlock(&cache->inode_lock);
		if (!idle)
			return;
		flusher_stop(idle);
		wb_destroy(idle);
	}
}

/* --- create ----------------------------------------------------------------------------------------------- */

static uint64_t default_u64(uint64_t v, uint64_t def) { return v ? v : def; }

/* Everything checked once, before anything is made. Fills in defaults. */
static int check_params(struct iomap_cache_params *p)
{
	if (p->inflight_bytes || p->pinned_bytes || p->pinned_background_bytes || p->write_policy || p->strict_limit ||
	    p->stat_path)
		return -EOPNOTSUPP;
	p->memory_bytes = default_u64(p->memory_bytes, MEMORY_DEFAULT);
	if (p->memory_bytes < MEMORY_MIN || p->memory_bytes > MEMORY_MAX)
		return -EINVAL;
	p->memory_bytes = round_down(p->memory_bytes, PAGE_BYTES);
	p->max_folio_bytes = default_u64(p->max_folio_bytes, PAGE_BYTES << MAX_ORDER);
	if (!is_pow2(p->max_folio_bytes) || p->max_folio_bytes < PAGE_BYTES)
		return -EINVAL;
	if (p->accounting > IOMAP_ACCT_FOLIO || p->error_policy > IOMAP_ERROR_DROP || p->dontcache > IOMAP_DONTCACHE_RATELIMIT)
		return -EINVAL;
	if (p->allocator && (!p->allocator->alloc || !p->allocator->free))
		return -EINVAL;
	p->dirty_bytes = default_u64(p->dirty_bytes, DIRTY_DEFAULT(p->memory_bytes));
	p->dirty_background_bytes = default_u64(p->dirty_background_bytes, p->dirty_bytes / 2);
	p->dirty_expire_ms = p->dirty_expire_ms ? p->dirty_expire_ms : EXPIRE_DEFAULT_MS;
	p->dirty_writeback_ms = p->dirty_writeback_ms ? p->dirty_writeback_ms : WRITEBACK_DEFAULT_MS;
	p->writeback_threads = p->writeback_threads ? p->writeback_threads : 2;
	p->queue_depth = p->queue_depth ? p->queue_depth : 128;
	if (p->writeback_threads > 256 || p->queue_depth > 65536)
		return -EINVAL;
	p->readahead_bytes = p->readahead_bytes ? p->readahead_bytes : READAHEAD_DEFAULT;
	return 0;
}

static unsigned folio_order_for(const struct iomap_cache *cache, uint64_t bytes)
{
	uint64_t memory = (uint64_t)cache->zone.arena.nr_frames * PAGE_BYTES;

	bytes = min_u64(min_u64(bytes, memory / 16), PAGE_BYTES << MAX_ORDER);
	return bytes > PAGE_BYTES ? log2_floor(bytes) - PAGE_SHIFT : 0;
}

static void init_in_place(struct iomap_cache *cache, const struct iomap_cache_params *p)
{
	cache->accounting = p->accounting;
	cache->error_policy = p->error_policy;
	cache->queue_depth = p->queue_depth;
	cache->writeback_threads = p->writeback_threads;
	cache->log = p->log;
	cache->log_priv = p->log_priv;
	store_relaxed(&cache->dirty_bytes, p->dirty_bytes);
	store_relaxed(&cache->dirty_background_bytes, p->dirty_background_bytes);
	store_relaxed(&cache->dontcache, p->dontcache);
	store_relaxed(&cache->dirty_expire_ms, p->dirty_expire_ms);
	store_relaxed(&cache->dirty_writeback_ms, p->dirty_writeback_ms);
	store_relaxed(&cache->readahead_bytes, p->readahead_bytes == IOMAP_READAHEAD_OFF ? 0 : p->readahead_bytes);
	store_relaxed(&cache->max_order, folio_order_for(cache, p->max_folio_bytes));
	mutex_init(&cache->inode_lock, LOCK_CACHE);
	list_init(&cache->late_inodes);
	cond_init(&cache->inode_cond);
	for (unsigned i = 0; i < INODE_HASH; i++)
		list_init(&cache->inodes[i]);
	list_init(&cache->wbs);
	tasks_init(cache);
	throttle_init(&cache->throttle);
	mutex_init(&cache->helper_lock, LOCK_WB_LIST);
	cond_init(&cache->helper_cond);
	wait_table_init(&cache->zone.waits);
	reclaim_init(cache);
	endio_init(cache);
}

static void fini_in_place(struct iomap_cache *cache)
{
	tasks_fini(cache);
	reclaim_fini(cache);
	endio_fini(cache);
	wait_table_fini(&cache->zone.waits);
	throttle_fini(&cache->throttle);
	mutex_fini(&cache->helper_lock);
	cond_fini(&cache->helper_cond);
	mutex_fini(&cache->inode_lock);
	cond_fini(&cache->inode_cond);
}

static void free_cache(struct iomap_cache *cache)
{
	struct mem mem = cache->zone.mem;

#ifdef IOMAP_DEBUG
	for (unsigned i = 0; i < FILES_KEPT; i++)
		mem_free(&mem, cache->closed[i], sizeof(*cache->closed[i]));
#endif
	if (cache->alive)
		plat_alive_destroy(cache->alive);
	mem_free(&mem, cache, sizeof(*cache));
	IOMAP_WARN_ON(mem_bytes(&mem) != 0);
	mem_fini(&mem);
}

int iomap_cache_create(struct iomap_cache **out, const struct iomap_cache_params *params)
{
	static const struct iomap_cache_params defaults;
	struct iomap_cache_params p;
	struct iomap_cache *cache;
	struct mem mem;
	uint64_t copies;
	int ret;

	if (!out)
		return -EINVAL;
	ret = params_copy(&p, sizeof(p), params ? params : &defaults, sizeof(p));
	if (!ret)
		ret = check_params(&p);
	if (!ret)
		ret = mem_init(&mem, p.allocator);
	if (ret)
		return ret;
	cache = mem_alloc_aligned(&mem, sizeof(*cache), 64);
	if (!cache) {
		mem_fini(&mem);
		return -ENOMEM;
	}
	cache->zone.mem = mem;
	ret = -ENOMEM;
	cache->alive = plat_alive_create();
	if (!cache->alive)
		goto free;
	ret = arena_init(&cache->zone.arena, p.memory_bytes);
	if (ret)
		goto free;
	copies = round_up(max_u64(min_u64(COPY_POOL_MAX, p.memory_bytes / 16), COPY_MAX_BYTES), PAGE_BYTES);
	ret = copy_pool_init(&cache->copies, &cache->zone.mem, copies);
	if (ret)
		goto arena;
	ret = ghost_init(&cache->ghost, &cache->zone.mem, p.memory_bytes / PAGE_BYTES);
	if (ret)
		goto copies;
	init_in_place(cache, &p);
	ret = reclaim_start(cache);
	if (ret)
		goto in_place;
	ret = flusher_start_helpers(cache);
	if (ret)
		goto reclaim;
	*out = cache;
	return 0;

reclaim:
	reclaim_stop(cache);
in_place:
	fini_in_place(cache);
	ghost_fini(&cache->ghost);
copies:
	copy_pool_fini(&cache->copies, &cache->zone.mem);
arena:
	arena_fini(&cache->zone.arena);
free:
	free_cache(cache);
	return ret;
}

/* --- sync ------------------------------------------------------------------------------------------------- */

/* Under DROP: an error that no sync of the whole cache has reported yet. */
static int sync_error(struct inode *inode)
{
	uint32_t since = load_relaxed(&inode->sync_since);
	int ret = errseq_check_and_advance(&inode->wb_err, &since);

	store_relaxed(&inode->sync_since, since);
	return ret;
}

/* A file of an engine's that is closed is still in the table, and will leave it: durable, or about to be. */
static bool engine_file_lingers(struct iomap_cache *cache)
{
	struct inode *inode = NULL;
	bool some = false;

	while ((inode = inode_next(cache, inode))) {
		if (!inode->mapped || load_relaxed(&inode->handles))
			continue;
		ioend_wait_idle(inode);         /* a completion's last words may come after the sync that waited for it */
		some |= flusher_lets_go(inode) || load_acquire(&inode->flush_running);
	}
	return some;
}

/* @report: under DROP, errors of the past too. */
static int sync_all(struct iomap_cache *cache, bool report)
{
	struct inode *inode = NULL;
	bool closed = false;
	int ret = 0;

	/* All devices start at once; then each file is seen to the end. */
	mutex_lock(&cache->inode_lock);
	list_for_each(it, &cache->wbs) {
		struct wb *wb = list_entry(it, struct wb, all);

		if (wb_level(wb, WB_DIRTY))
			flusher_request(wb, wb_level(wb, WB_DIRTY));
	}
	mutex_unlock(&cache->inode_lock);
	while ((inode = inode_next(cache, inode))) {
		int one = 0;

		if (!inode_is_durable(inode))
			one = sync_inode(inode, 0, UINT64_MAX, false);
		if (!one)
			one = sync_name(inode);
		if (!one && report && cache->error_policy == IOMAP_ERROR_DROP)
			one = sync_error(inode);
		if (one && !ret)
			ret = one;
		closed |= inode->mapped && !load_relaxed(&inode->handles);
	}
	/* Engines may forget what was closed before; a flusher may be at it just now, or has still to drop its reference. */
	while (closed && engine_file_lingers(cache))
		plat_relax(1000);
	return ret;
}

/* --- end -------------------------------------------------------------------------------------------------- */

static bool table_is_empty(struct iomap_cache *cache)
{
	bool empty = true;

	mutex_lock(&cache->inode_lock);
	for (unsigned i = 0; i < INODE_HASH; i++)
		empty &= list_empty(&cache->inodes[i]);
	mutex_unlock(&cache->inode_lock);
	return empty;
}

/* Threads, backing devices, memory: all but the struct and its metadata arena. No inode is left. */
static void take_apart(struct iomap_cache *cache)
{
	flusher_stop_helpers(cache);
	while (!list_empty(&cache->wbs)) {
		struct wb *wb = list_first(&cache->wbs, struct wb, all);

		list_del(&wb->all);
		flusher_stop(wb);
		wb_destroy(wb);
	}
	endio_stop(cache);
	reclaim_stop(cache);
	fini_in_place(cache);
	rcu_drain();
	/* Somebody has kept a reference. */
	IOMAP_WARN_ON(arena_free_bytes(&cache->zone.arena) != (uint64_t)cache->zone.arena.nr_frames * PAGE_BYTES);
	ghost_fini(&cache->ghost);
	copy_pool_fini(&cache->copies, &cache->zone.mem);
	arena_fini(&cache->zone.arena);
}

int iomap_cache_destroy(struct iomap_cache *cache)
{
	int ret;

	if (!cache)
		return 0;
	if (!*cache->alive)
		return -EBADF;
	mutex_lock(&cache->inode_lock);
	ret = cache->nr_handles ? -EBUSY : 0;
	mutex_unlock(&cache->inode_lock);
	if (!ret)
		ret = sync_all(cache, false);
	if (ret)
		return ret;
	/* Closed and clean: each goes with its lists' reference, some by a flusher that is at it just now. */
	while (!table_is_empty(cache)) {
		struct inode *inode = NULL;

		while ((inode = inode_next(cache, inode))) {
			ioend_wait_idle(inode);
			flusher_check_clean(inode);
		}
		plat_relax(1000);
	}
	take_apart(cache);
	free_cache(cache);
	return 0;
}

static bool requests_outstanding(struct iomap_cache *cache)
{
	bool some = false;

	mutex_lock(&cache->inode_lock);
	list_for_each(it, &cache->wbs)
		some |= wb_is_busy(list_entry(it, struct wb, all));
	mutex_unlock(&cache->inode_lock);
	return some;
}

void iomap_cache_abandon(struct iomap_cache *cache)
{
	uint64_t until = plat_now_ns() + ABANDON_WAIT_NS;
	struct inode *inode = NULL;
	bool last;

	if (!cache || !*cache->alive)
		return;
	store_release(&cache->abandoned, true);
	flusher_ask_stop_helpers(cache);
	list_for_each(it, &cache->wbs)
		flusher_ask_stop(list_entry(it, struct wb, all));
	/* The reclaim thread stays, it gives out the rest of what comes back short; and that of end_io(), which ends requests. */
	while (load_acquire(&cache->nr_threads) > 1U + cache->endio.has_thread || requests_outstanding(cache)) {
		if (plat_now_ns() > until) {
			cache_log(cache, IOMAP_LOG_ERR, "requests still in flight after 10 s: the cache's memory is left to them");
			mutex_lock(&cache->inode_lock);
			cache->nr_handles++;    /* also when the last handle is closed */
			mutex_unlock(&cache->inode_lock);
			return;
		}
		plat_sleep_ns(NS_PER_MS);
	}
	flusher_stop_helpers(cache);
	list_for_each(it, &cache->wbs)
		flusher_stop(list_entry(it, struct wb, all));
	while ((inode = inode_next(cache, inode))) {
		truncate_from(&inode->mapping, 0);
		flusher_forget(inode);
		mutex_lock(&cache->inode_lock);
		inode->refs -= load_relaxed(&inode->handles);
		store_relaxed(&inode->handles, 0);
		mutex_unlock(&cache->inode_lock);
	}
	take_apart(cache);
	mutex_init(&cache->inode_lock, LOCK_CACHE);     /* for the handles that are still to be closed */
	mutex_lock(&cache->inode_lock);
	last = !cache->nr_handles;
	mutex_unlock(&cache->inode_lock);
	if (last)
		free_cache(cache);
}

void cache_handle_closed(struct iomap_cache *cache)
{
	bool last;

	mutex_lock(&cache->inode_lock);
	last = !--cache->nr_handles && load_relaxed(&cache->abandoned);
	mutex_unlock(&cache->inode_lock);
	if (last)
		free_cache(cache);
}

/* --- whole-cache calls ------------------------------------------------------------------------------------ */

int iomap_cache_sync(struct iomap_cache *cache)
{
	if (!cache)
		return -EINVAL;
	if (!cache_is_usable(cache))
		return -EBADF;
	return sync_all(cache, true);
}

int iomap_cache_drop(struct iomap_cache *cache)
{
	struct inode *inode = NULL;

	if (!cache)
		return -EINVAL;
	if (!cache_is_usable(cache))
		return -EBADF;
	while ((inode = inode_next(cache, inode)))
		invalidate_clean(&inode->mapping, 0, UINT64_MAX >> PAGE_SHIFT);
	return 0;
}

int iomap_cache_set(struct iomap_cache *cache, enum iomap_tunable which, uint64_t value)
{
	struct inode *inode = NULL;
	uint64_t memory;
	int ret = 0;

	if (!cache)
		return -EINVAL;
	if (!cache_is_usable(cache))
		return -EBADF;
	memory = (uint64_t)cache->zone.arena.nr_frames * PAGE_BYTES;
	switch (which) {
	case IOMAP_TUNE_DIRTY_BYTES:
		store_relaxed(&cache->dirty_bytes, value ? value : DIRTY_DEFAULT(memory));
		break;
	case IOMAP_TUNE_DIRTY_BACKGROUND_BYTES:
		store_relaxed(&cache->dirty_background_bytes, value ? value : load_relaxed(&cache->dirty_bytes) / 2);
		break;
	case IOMAP_TUNE_DIRTY_EXPIRE_MS:
		if (value > UINT_MAX)
			return -EINVAL;
		store_relaxed(&cache->dirty_expire_ms, value ? (unsigned)value : EXPIRE_DEFAULT_MS);
		break;
	case IOMAP_TUNE_DIRTY_WRITEBACK_MS:
		if (value > UINT_MAX)
			return -EINVAL;
		store_relaxed(&cache->dirty_writeback_ms, value ? (unsigned)value : WRITEBACK_DEFAULT_MS);
		break;
	case IOMAP_TUNE_READAHEAD_BYTES:
		if (value > UINT_MAX)
			return -EINVAL;
		value = value ? value : READAHEAD_DEFAULT;
		store_relaxed(&cache->readahead_bytes, value == IOMAP_READAHEAD_OFF ? 0 : (unsigned)value);
		break;
	case IOMAP_TUNE_MAX_FOLIO_BYTES:
		value = value ? value : PAGE_BYTES << MAX_ORDER;
		if (!is_pow2(value) || value < PAGE_BYTES)
			return -EINVAL;
		store_relaxed(&cache->max_order, folio_order_for(cache, value));
		while ((inode = inode_next(cache, inode)))
			store_relaxed(&inode->mapping.max_order, load_relaxed(&cache->max_order));
		break;
	case IOMAP_TUNE_DONTCACHE:
		if (value > IOMAP_DONTCACHE_RATELIMIT)
			return -EINVAL;
		store_relaxed(&cache->dontcache, (unsigned)value);
		break;
	case IOMAP_TUNE_INFLIGHT_BYTES:
	case IOMAP_TUNE_PINNED_BYTES:
	case IOMAP_TUNE_PINNED_BACKGROUND_BYTES:
	case IOMAP_TUNE_WRITE_POLICY:
		ret = -EOPNOTSUPP;
		break;
	default:
		ret = -EINVAL;
	}
	if (!ret) {     /* whoever sleeps by the old numbers looks at the new ones */
		mutex_lock(&cache->inode_lock);
		list_for_each(it, &cache->wbs) {
			struct wb *wb = list_entry(it, struct wb, all);

			mutex_lock(&wb->list_lock);
			wb->background_wanted = true;
			cond_broadcast(&wb->work_cond);
			mutex_unlock(&wb->list_lock);
		}
		mutex_unlock(&cache->inode_lock);
	}
	return ret;
}
