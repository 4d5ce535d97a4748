/*
 * stat.c - what is going on, in numbers
 *
 * Public entry points of <iomap/stat.h>. One table of names serves text, Prometheus and JSON.
 *
 * Kernel: /proc/vmstat.
 */
#include <errno.h>
#include <iomap/stat.h>
#include <stddef.h>
#include <string.h>
#include "file.h"
#include "reclaim.h"
#include "throttle.h"

static uint64_t level(struct iomap_cache *cache, enum wb_level l)
{
	int64_t v = load_relaxed(&cache->sums.level[l]);

	return v > 0 ? (uint64_t)v : 0;
}

static uint64_t total(struct iomap_cache *cache, enum wb_total t) { return load_relaxed(&cache->sums.total[t]); }

/* Bytes of a folio's frames that hold a dirty or in-flight block: what splitting it would not free. */
static uint64_t hard_bytes(struct iomap_folio *f, const struct ifs_geometry *g)
{
	unsigned per = g->block_shift < PAGE_SHIFT ? 1U << (PAGE_SHIFT - g->block_shift) : 1, nr = ifs_blocks(f, g), n = 0;

	if (folio_is_writeback(f))
		return folio_bytes(f);  /* not to be split now */
	for (unsigned b = 0; b < nr; b += per)
		n += ifs_any(f, g, IFS_DIRTY, b, per);
	return (uint64_t)n * per << g->block_shift;
}

static void look_at_files(struct iomap_cache *cache, struct iomap_cache_stat *s)
{
	struct inode *inode = NULL;

	while ((inode = inode_next(cache, inode))) {
		struct mapping *m = &inode->mapping;
		struct iomap_folio *f;
		pgoff_t at = 0;

		mutex_lock(&m->tree_lock);
		while ((f = xa_find(&m->tree, &at, UINT64_MAX))) {
			folio_state_lock(f);
			if (folio_flags(f) & (FOLIO_DIRTY | FOLIO_WRITEBACK))
				s->pin_hard_bytes += hard_bytes(f, &m->geom);
			folio_state_unlock(f);
			s->folios[folio_order(f)]++;
			at += folio_pages(f);
			if (!at)
				break;
		}
		mutex_unlock(&m->tree_lock);
	}
}

static void collect(struct iomap_cache *cache, struct iomap_cache_stat *s)
{
	uint64_t memory = (uint64_t)cache->zone.arena.nr_frames * PAGE_BYTES;
	struct throttle_view v;

	memset(s, 0, sizeof(*s));
	look_at_files(cache, s);
	s->dirty_bytes = level(cache, WB_DIRTY);
	s->writeback_bytes = level(cache, WB_WRITEBACK);
	s->pinned_bytes = level(cache, WB_PINNED);
	s->failed_bytes = level(cache, WB_FAILED);
	s->dontcache_dirty_bytes = level(cache, WB_DONTCACHE);
	s->free_bytes = arena_free_bytes(&cache->zone.arena);
	s->cached_bytes = reclaim_queued_bytes(cache);
	s->metadata_bytes = mem_bytes(&cache->zone.mem) + copy_pool_bytes(&cache->copies) + cache->zone.arena.frames_bytes;
	s->dirty_peak_bytes = load_relaxed(&cache->peaks.dirty);
	s->pinned_peak_bytes = load_relaxed(&cache->peaks.pinned);
	s->max_dirty_folio_bytes = load_relaxed(&cache->peaks.dirty_folio);
	s->pin_hard_bytes = min_u64(s->pin_hard_bytes, s->pinned_bytes);
	s->pin_soft_bytes = s->pinned_bytes - s->pin_hard_bytes;
	s->ready_bytes = memory > s->pinned_bytes ? memory - s->pinned_bytes : 0;
	s->dirtied_bytes = total(cache, WB_DIRTIED);
	s->redirtied_bytes = total(cache, WB_REDIRTIED);
	s->submitted_bytes = total(cache, WB_SUBMITTED);
	s->written_bytes = total(cache, WB_WRITTEN);
	s->write_failed_bytes = total(cache, WB_WRITE_FAILED);
	s->cancelled_bytes = total(cache, WB_CANCELLED);
	s->pin_acquired_bytes = total(cache, WB_PIN_ACQUIRED);
	s->pin_released_bytes = total(cache, WB_PIN_RELEASED);
	s->pin_dropped_bytes = total(cache, WB_PIN_DROPPED);
	s->hits = cache_task_sum(cache, TASK_HITS);
	s->misses = cache_task_sum(cache, TASK_MISSES);
	s->readahead_bytes = load_relaxed(&cache->readahead_bytes_read);
	s->readahead_wasted_bytes = load_relaxed(&cache->reclaim.wasted_bytes);
	s->evicted_bytes = load_relaxed(&cache->reclaim.evicted_bytes);
	s->refaults = load_relaxed(&cache->reclaim.refaults);
	s->splits = load_relaxed(&cache->zone.splits);
	s->split_failures = load_relaxed(&cache->zone.split_failures);
	s->throttled_ns = cache_task_sum(cache, TASK_THROTTLED_NS);
	s->throttle_pauses = cache_task_sum(cache, TASK_PAUSES);
	throttle_look(cache, &v);
	s->dirty_limit_bytes = v.limit;
	s->background_limit_bytes = v.background;
	s->setpoint_bytes = v.setpoint;
	s->dirty_ratelimit = v.ratelimit;
	s->write_bandwidth = v.bandwidth;
}

/* A caller of another version gets its part; what this one lacks is 0. */
static int hand_out(void *to, size_t size, const void *from, size_t known)
{
	if (!to || !size || size % sizeof(uint64_t))
		return -EINVAL;
	memset(to, 0, size);
	memcpy(to, from, size < known ? size : known);
	return 0;
}

int iomap_cache_stat(struct iomap_cache *cache, struct iomap_cache_stat *st, size_t size)
{
	struct iomap_cache_stat s;

	if (!cache || !st)
		return -EINVAL;
	if (!cache_is_usable(cache))
		return -EBADF;
	collect(cache, &s);
	return hand_out(st, size, &s, sizeof(s));
}

int iomap_file_stat(struct iomap_file *file, struct iomap_file_stat *st, size_t size)
{
	struct iomap_file_stat s = { 0 };
	struct mapping_sums sums = { 0 };
	char why[128];

	if (!file || !st)
		return -EINVAL;
	file_check_open(file);
	if (!cache_is_usable(file->cache))
		return -EBADF;
	mapping_check(&file->inode->mapping, &sums, why, sizeof(why));
	s.size_bytes = inode_size(file->inode);
	s.cached_bytes = sums.pages * PAGE_BYTES;
	s.dirty_bytes = (uint64_t)sums.dirty;
	s.writeback_bytes = (uint64_t)sums.writeback;
	s.failed_bytes = (uint64_t)sums.failed;
	memcpy(s.folios, sums.folios, sizeof(s.folios));
	s.misses = load_relaxed(&file->inode->misses);
	s.readahead_bytes = load_relaxed(&file->inode->readahead_bytes);
	return hand_out(st, size, &s, sizeof(s));
}

/* --- printing --------------------------------------------------------------------------------------------- */

static const struct { const char *name; size_t offset; bool counts_up; } names[] = {
#define LEVEL(f) { #f, offsetof(struct iomap_cache_stat, f), false }
#define TOTAL(f) { #f, offsetof(struct iomap_cache_stat, f), true }
	LEVEL(dirty_bytes), LEVEL(writeback_bytes), LEVEL(pinned_bytes), LEVEL(failed_bytes), LEVEL(dontcache_dirty_bytes),
	LEVEL(cached_bytes), LEVEL(free_bytes), LEVEL(metadata_bytes), LEVEL(dirty_peak_bytes), LEVEL(pinned_peak_bytes),
	LEVEL(max_dirty_folio_bytes), LEVEL(pin_hard_bytes), LEVEL(pin_soft_bytes), LEVEL(ready_bytes),
	TOTAL(dirtied_bytes), TOTAL(redirtied_bytes), TOTAL(submitted_bytes), TOTAL(written_bytes), TOTAL(write_failed_bytes),
	TOTAL(cancelled_bytes), TOTAL(pin_acquired_bytes), TOTAL(pin_released_bytes), TOTAL(pin_dropped_bytes), TOTAL(hits),
	TOTAL(misses), TOTAL(readahead_bytes), TOTAL(readahead_wasted_bytes), TOTAL(evicted_bytes), TOTAL(refaults),
	TOTAL(splits), TOTAL(split_failures), TOTAL(throttled_ns), TOTAL(throttle_pauses),
	LEVEL(dirty_limit_bytes), LEVEL(background_limit_bytes), LEVEL(setpoint_bytes), LEVEL(dirty_ratelimit),
	LEVEL(write_bandwidth),
};

static uint64_t value_of(const struct iomap_cache_stat *s, size_t offset)
{
	uint64_t v;

	memcpy(&v, (const char *)s + offset, sizeof(v));
	return v;
}

int iomap_stat_print(struct iomap_cache *cache, FILE *out, enum iomap_stat_format format)
{
	struct iomap_cache_stat s;

	if (!cache || !out || format > IOMAP_STAT_JSON)
		return -EINVAL;
	if (!cache_is_usable(cache))
		return -EBADF;
	collect(cache, &s);
	if (format == IOMAP_STAT_JSON)
		fputc('{', out);
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		unsigned long long v = value_of(&s, names[i].offset);

		if (format == IOMAP_STAT_TEXT)
			fprintf(out, "%s %llu\n", names[i].name, v);
		else if (format == IOMAP_STAT_JSON)
			fprintf(out, "\"%s\":%llu,", names[i].name, v);
		else if (names[i].counts_up)
			fprintf(out, "# TYPE iomap_%s_total counter\niomap_%s_total %llu\n", names[i].name, names[i].name, v);
		else
			fprintf(out, "# TYPE iomap_%s gauge\niomap_%s %llu\n", names[i].name, names[i].name, v);
	}
	if (format == IOMAP_STAT_JSON)
		fputs("\"folios\":[", out);
	else if (format == IOMAP_STAT_PROMETHEUS)
		fputs("# TYPE iomap_folios gauge\n", out);
	for (unsigned i = 0; i < IOMAP_STAT_ORDERS; i++) {
		unsigned long long v = s.folios[i];

		if (format == IOMAP_STAT_TEXT)
			fprintf(out, "folios_order%u %llu\n", i, v);
		else if (format == IOMAP_STAT_JSON)
			fprintf(out, "%s%llu", i ? "," : "", v);
		else
			fprintf(out, "iomap_folios{order=\"%u\"} %llu\n", i, v);
	}
	if (format == IOMAP_STAT_JSON)
		fputs("]}\n", out);
	return ferror(out) ? -EIO : 0;
}
