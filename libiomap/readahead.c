/*
 * readahead.c - what to read next
 *
 * The decisions are readahead-window.c's; here they become folios and requests. A window's folios are created locked, in
 * ascending order, and given to one fill; folios that are there already or for which there is no memory only shorten it. Reading
 * ahead never waits for memory: only the folio a reader is waiting for may.
 *
 * A reader that asked for no more than its own pages (readahead off, random access) waits here and gets the error of its
 * read; one that started a window waits for its folio's lock and, should the window have failed, reads its own blocks.
 *
 * Locking: invalidate_lock shared, folio locks of new folios; the handle's lock only while deciding.
 * Kernel:  mm/readahead.c.
 */
#include <errno.h>
#include "fill.h"
#include "readahead.h"

uint32_t readahead_pages(struct iomap_cache *cache)
{
	uint64_t pages = load_relaxed(&cache->readahead_bytes) / PAGE_BYTES;

	return (uint32_t)min_u64(pages, cache->zone.arena.nr_frames / 16);
}

void readahead_init(struct file_ra *fra, uint32_t pages)
{
	mutex_init(&fra->lock, LOCK_LEAF);
	ra_init(&fra->ra, pages);
}

void readahead_fini(struct file_ra *fra) { mutex_fini(&fra->lock); }

static bool cached(void *mapping, pgoff_t index) { return mapping_has(mapping, index); }

static struct ra_env env_of(struct inode *inode)
{
	struct mapping *m = &inode->mapping;
	uint32_t max = load_relaxed(&m->max_order);

	return (struct ra_env){
		.file_pages = div_round_up(inode_size(inode), PAGE_BYTES),
		.io_pages = (uint32_t)min_u64(inode->device->info.optimal_io / PAGE_BYTES, UINT32_MAX),
		.min_order = m->min_order,
		.max_order = max < m->min_order ? m->min_order : max,
		.cached = cached,
		.arg = m,
	};
}

/*
 * Carries a plan out, of which the reader asked for @asked pages. The page @wanted (or none: UINT64_MAX) may wait
 * for memory. @dontcache: its folios are to be dropped behind the reader.
 */
static void populate(struct inode *inode, struct ra_plan *plan, const struct ra_env *env, pgoff_t wanted, uint64_t asked,
		     bool dontcache, struct io_wait *wait)
{
	struct mapping *m = &inode->mapping;
	struct ra_folio next;
	struct fill fl;
	uint64_t ahead;

	fill_init(&fl, inode, wait);
	while (ra_plan_next(plan, env, &next)) {
		struct iomap_folio *f;
		bool wants = wanted >= next.index && wanted - next.index < UINT64_C(1) << next.order;
		/* Nothing is locked yet while the first folio is made: only then may we wait. */
		unsigned flags = MAPPING_EXACT | (wants && !fl.bytes ? MAPPING_MAY_WAIT : 0) |
				 (dontcache ? MAPPING_DROPBEHIND : 0);
		int ret = mapping_create(m, next.index, next.order, flags, &f);

		if (ret) {
			fill_submit(&fl);
			if (ret == -ENOMEM && next.order <= env->min_order)
				break;
			ra_plan_failed(plan, &next);
			continue;
		}
		if (next.marked)
			folio_flags_set(f, FOLIO_READAHEAD);
		if (!wants)
			folio_flags_set(f, FOLIO_UNUSED);
		if (fill_add(&fl, f))
			break;
	}
	fill_submit(&fl);
	ahead = fl.bytes - min_u64(fl.bytes, asked * PAGE_BYTES);
	add_relaxed(&inode->readahead_bytes, ahead);
	add_relaxed(&inode->cache->readahead_bytes_read, ahead);
}

int readahead_miss(struct inode *inode, struct file_ra *fra, pgoff_t index, uint64_t req_pages, bool dontcache)
{
	struct ra_env env = env_of(inode);
	struct ra_plan plan;
	struct io_wait wait;
	bool exact;
	int ret;

	mutex_lock(&fra->lock);
	ra_sync(&fra->ra, index, req_pages, &env, &plan);
	fra->ra.prev_pos = (index + req_pages) << PAGE_SHIFT;        /* where this read will end */
	mutex_unlock(&fra->lock);
	exact = plan.end <= round_up(index + req_pages, UINT64_C(1) << env.min_order);
	if (!exact) {
		populate(inode, &plan, &env, index, req_pages, dontcache, NULL);
		return 0;
	}
	io_wait_init(&wait);
	populate(inode, &plan, &env, index, req_pages, dontcache, &wait);
	ret = io_wait_for_all(&wait);
	io_wait_fini(&wait);
	return ret;
}

void readahead_hit_mark(struct inode *inode, struct file_ra *fra, struct iomap_folio *f, uint64_t req_pages, bool dontcache)
{
	struct ra_env env = env_of(inode);
	struct ra_plan plan;
	pgoff_t index;
	bool go;

	if (!(and_acq_rel(&f->flags, ~(uint32_t)FOLIO_READAHEAD) & FOLIO_READAHEAD))
		return;
	if (folio_is_writeback(f))
		return;
	mutex_lock(&fra->lock);
	index = folio_index(f);
	go = ra_async(&fra->ra, index, folio_pages(f), req_pages, &env, &plan);
	mutex_unlock(&fra->lock);
	if (go)
		populate(inode, &plan, &env, UINT64_MAX, 0, dontcache, NULL);
}

void readahead_force(struct inode *inode, struct file_ra *fra, pgoff_t index, uint64_t nr_pages)
{
	struct ra_env env = env_of(inode);
	struct ra_plan plan;
	uint64_t most;

	mutex_lock(&fra->lock);
	most = max_u64(fra->ra.ra_pages, env.io_pages);
	mutex_unlock(&fra->lock);
	nr_pages = min_u64(nr_pages, most);
	if (index >= env.file_pages || !nr_pages)
		return;
	index = round_down(index, UINT64_C(1) << env.min_order);
	plan = (struct ra_plan){
		.index = index, .end = min_u64(index + nr_pages, round_up(env.file_pages, UINT64_C(1) << env.min_order)),
		.mark = UINT64_MAX, .order = env.min_order, .plain = true,
	};
	populate(inode, &plan, &env, UINT64_MAX, 0, false, NULL);
}
