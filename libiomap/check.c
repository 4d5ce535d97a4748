/*
 * check.c - every invariant of a cache, recomputed
 *
 * Public entry point iomap_cache_check(). Each object is checked under its own lock (arena_check, reclaim_check, mapping_check …); the
 * accounting laws D1 to D9 tie the sums over all of them to the counters, where nothing moved meanwhile.
 *
 * Kernel: none; this is what a kernel can not stop to do.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "inode.h"
#include "reclaim.h"

struct totals { int64_t level[WB_LEVELS]; uint64_t total[WB_TOTALS]; };

static void read_totals(struct iomap_cache *cache, struct totals *t)
{
	for (unsigned i = 0; i < WB_LEVELS; i++)
		t->level[i] = load_acquire(&cache->sums.level[i]);
	for (unsigned i = 0; i < WB_TOTALS; i++)
		t->total[i] = load_acquire(&cache->sums.total[i]);
}

static int broken(char *why, size_t len, const char *what, int64_t counted, int64_t claimed)
{
	snprintf(why, len, "%s: counted %lld, claimed %lld", what, (long long)counted, (long long)claimed);
	return -EUCLEAN;
}

/* Laws D1 … D9 over totals that stood still. */
static int check_laws(struct iomap_cache *cache, const struct totals *t, const struct mapping_sums *s, char *why, size_t len)
{
	const int64_t *l = t->level;
	const uint64_t *n = t->total;
	int64_t per_wb[WB_LEVELS] = { 0 };
	struct { const char *what; int64_t counted, claimed; } laws[] = {
		{ "D1 dirty bytes of all bitmaps", s->dirty, l[WB_DIRTY] },
		{ "D1 writeback bytes of all bitmaps", s->writeback, l[WB_WRITEBACK] },
		{ "D1 pinned bytes of all folios", s->pinned, l[WB_PINNED] },
		{ "failed bytes of all bitmaps", s->failed, l[WB_FAILED] },
		{ "D1 dirty bytes of all DONTCACHE folios", s->dontcache, l[WB_DONTCACHE] },
		{ "D1 DONTCACHE dirty bytes of all files", s->dontcache_files, l[WB_DONTCACHE] },
		{ "D2 dirtied + redirtied = dirty + submitted + cancelled",
		  (int64_t)(n[WB_DIRTIED] + n[WB_REDIRTIED]), l[WB_DIRTY] + (int64_t)(n[WB_SUBMITTED] + n[WB_CANCELLED]) },
		{ "D3 submitted = writeback + written + failed",
		  (int64_t)n[WB_SUBMITTED], l[WB_WRITEBACK] + (int64_t)(n[WB_WRITTEN] + n[WB_WRITE_FAILED]) },
		{ "D5 acquired = pinned + released + dropped",
		  (int64_t)n[WB_PIN_ACQUIRED], l[WB_PINNED] + (int64_t)(n[WB_PIN_RELEASED] + n[WB_PIN_DROPPED]) },
		{ "D9 bytes dirtied by all threads", (int64_t)cache_task_sum(cache, TASK_DIRTIED_BYTES), (int64_t)n[WB_DIRTIED] },
	};

	mutex_lock(&cache->inode_lock);
	list_for_each(it, &cache->wbs)
		for (unsigned i = 0; i < WB_LEVELS; i++)
			per_wb[i] += load_relaxed(&list_entry(it, struct wb, all)->level[i]);
	mutex_unlock(&cache->inode_lock);
	for (unsigned i = 0; i < WB_LEVELS; i++)
		if (per_wb[i] != l[i])
			return broken(why, len, "D1 levels of all backing devices", per_wb[i], l[i]);
	for (unsigned i = 0; i < ARRAY_SIZE(laws); i++)
		if (laws[i].counted != laws[i].claimed)
			return broken(why, len, laws[i].what, laws[i].counted, laws[i].claimed);
	return 0;
}

/* What is dirty is on a flusher's list. Who dirties holds the rwsem until it is: only with all of it in hand can one tell. */
static int check_listed(struct inode *inode, char *why, size_t len)
{
	int ret = 0;

	if (!rwsem_trylock(&inode->rwsem))
		return 0;
	mutex_lock(&inode->wb->list_lock);
	if (mapping_is_marked(&inode->mapping, XA_MARK_DIRTY) && !(load_relaxed(&inode->flags) & I_DIRTY)) {
		snprintf(why, len, "inode %llu has dirty blocks and is on no list of the flusher's",
			 (unsigned long long)inode->mapping.file_id);
		ret = -EUCLEAN;
	}
	mutex_unlock(&inode->wb->list_lock);
	rwsem_unlock(&inode->rwsem);
	return ret;
}

int iomap_cache_check(struct iomap_cache *cache, char *why, size_t why_len)
{
	struct mapping_sums sums = { 0 };
	struct totals before, after;
	struct inode *inode = NULL;
	char unused[256];
	int ret;

	if (!cache)
		return -EINVAL;
	if (!cache_is_usable(cache))
		return -EBADF;
	if (!why || !why_len) {
		why = unused;
		why_len = sizeof(unused);
	}
	why[0] = '\0';
	read_totals(cache, &before);
	ret = arena_check(&cache->zone.arena, why, why_len);
	if (!ret)
		ret = reclaim_check(cache, why, why_len);
	while (!ret && (inode = inode_next(cache, inode))) {
		ret = mapping_check(&inode->mapping, &sums, why, why_len);
		if (!ret)
			ret = rangeset_check(&inode->allocated, why, why_len);
		if (!ret)
			ret = rangeset_check(&inode->unflushed, why, why_len);
		if (!ret)
			ret = rangeset_check(&inode->lost, why, why_len);
		if (!ret)
			ret = check_listed(inode, why, why_len);
		if (ret)
			inode_put(inode);
	}
	if (ret)
		return ret;
	read_totals(cache, &after);
	if (memcmp(&before, &after, sizeof(before))) {
		snprintf(why, why_len, "sums skipped: the cache was at work meanwhile");
		return 0;
	}
	/* A writer counts its own bytes a moment after the bits: only what stays broken is broken. */
	for (unsigned looks = 0; (ret = check_laws(cache, &after, &sums, why, why_len)) && looks < 20; looks++) {
		plat_sleep_ns(NS_PER_MS);
		read_totals(cache, &before);
		if (memcmp(&before, &after, sizeof(before))) {
			snprintf(why, why_len, "sums skipped: the cache was at work meanwhile");
			return 0;
		}
	}
	return ret;
}

