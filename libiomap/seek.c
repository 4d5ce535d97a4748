/*
 * seek.c - holes and data
 *
 * A block is data if it is dirty or in flight, or if the device has something stored there. What is cached and clean says
 * nothing: reading a hole does not make it data. The answer has the granularity of blocks: a block of which the device stores a
 * part is data.
 *
 * Writeback goes on meanwhile and turns dirty blocks into stored ones. So the cache is asked first: a block that is neither dirty nor
 * in flight any more has been written, and the device, asked after that, knows of it. The other way round it might be
 * found in neither. Under IOMAP_ERROR_DROP blocks whose write failed turn clean and are stored nowhere: once a write of a file has
 * failed, all that is cached of it counts as data.
 *
 * Where an engine maps, its mappings stand for the device: an extent that is mapped, delayed or inline is data.
 *
 * Invariants: SEEK_HOLE never returns a place inside a dirty or in-flight block; there is a hole at the end of every file.
 * Locking:    the caller's rwsem; a folio's state is looked at under its folio lock.
 * Kernel:     fs/iomap/seek.c. Differs: clean cache over an unwritten extent is no data.
 */
#include <errno.h>
#include <unistd.h>
#include "iter.h"
#include "mutant.h"
#include "seek.h"

#define LOOKS 4                         /* while writes fail */

static bool is_busy(const struct iomap_folio *f, const struct ifs_geometry *g, unsigned b, bool cached)
{
	return ifs_block_set(f, g, IFS_DIRTY, b) || ifs_block_set(f, g, IFS_INFLIGHT, b) ||
	       (cached && ifs_block_set(f, g, IFS_UPTODATE, b));
}

static uint64_t look_for_busy(struct mapping *m, uint64_t pos, uint64_t *end, bool cached)
{
	uint64_t bs = ifs_block_bytes(&m->geom), start = UINT64_MAX;
	pgoff_t at = pos >> PAGE_SHIFT;
	struct iomap_folio *f;

	*end = UINT64_MAX;
	while (start == UINT64_MAX && (f = (cached ? mapping_next : mapping_next_busy)(m, &at, UINT64_MAX >> PAGE_SHIFT))) {
		folio_lock(m->zone, f);
		if (folio_mapping(f) == m) {    /* else it went meanwhile: look again */
			unsigned nr = ifs_blocks(f, &m->geom), b = 0;

			folio_state_lock(f);    /* a completion moves blocks from in flight to dirty, without the folio lock */
			if (pos > folio_pos(f))
				b = (unsigned)min_u64((pos - folio_pos(f)) >> m->geom.block_shift, nr);
			while (b < nr && !is_busy(f, &m->geom, b, cached))
				b++;
			if (b < nr) {
				start = folio_pos(f) + b * bs;
				while (b < nr && is_busy(f, &m->geom, b, cached))
					b++;
				*end = folio_pos(f) + b * bs;
			}
			folio_state_unlock(f);
			at = folio_index(f) + folio_pages(f);
		}
		folio_unlock(m->zone, f);
		folio_put(m->zone, f);
	}
	return start;
}

/*
 * The first run of blocks from block @pos on that are dirty or in flight, in one folio: where it begins and, in *@end, where it ends.
 * UINT64_MAX: there is none.
 */
static uint64_t next_busy(struct inode *inode, uint64_t pos, uint64_t *end)
{
	uint64_t start = UINT64_MAX, failures;
	unsigned looks = 0;

	/* Under DROP a block whose write fails is neither, from now on: look again. */
	do {
		failures = inode_failures(inode);
		start = look_for_busy(&inode->mapping, pos, end,
				      failures && inode->cache->error_policy == IOMAP_ERROR_DROP);
	} while (!inode_no_failure_since(inode, failures) && ++looks < LOOKS);
	return start;
}

static bool is_stored(const struct iomap *map)
{
	return map->type == IOMAP_MAPPED || map->type == IOMAP_DELALLOC || map->type == IOMAP_INLINE;
}

/* Where an engine maps: the first place from @pos on that is @stored or is not, or the file's end. */
static int walk_maps(struct inode *inode, uint64_t pos, bool stored, uint64_t *out)
{
	struct iter it;
	int ret;

	iter_init(&it, inode, pos, inode_size(inode) - pos, IOMAP_REPORT);
	while ((ret = iter_next(&it)) > 0)
		if (is_stored(&it.map) != stored)
			iter_advance(&it, iter_length(&it));    /* else it ends here */
	*out = it.pos;
	return ret;
}

/* First stored block from block @pos on. 0, with *@out UINT64_MAX where there is none. */
static int next_stored(struct inode *inode, uint64_t pos, uint64_t *out)
{
	uint64_t stored = device_size(inode->device);
	int ret;

	*out = UINT64_MAX;
	if (inode->mapped && pos < inode_size(inode)) {
		ret = walk_maps(inode, pos, true, out);
		if (!ret && *out >= inode_size(inode))
			*out = UINT64_MAX;
		return ret;
	}
	if (pos >= stored || inode->mapped)
		return 0;
	ret = device_seek(inode->device, pos, SEEK_DATA, out);
	if (ret == -EOPNOTSUPP || ret == -EINVAL) {     /* it does not know: all is data */
		*out = pos;
		return 0;
	}
	if (ret && ret != -ENXIO)
		return ret;
	/* What is behind the size that we know of is an extension's that failed. */
	*out = ret || *out >= stored ? UINT64_MAX : round_down(*out, ifs_block_bytes(&inode->mapping.geom));
	return 0;
}

/* The end of what is stored from block @pos on, which is. */
static int end_of_stored(struct inode *inode, uint64_t pos, uint64_t *out)
{
	uint64_t stored = inode_stored_end(inode);
	int ret = inode->mapped ? walk_maps(inode, pos, false, out) : device_seek(inode->device, pos, SEEK_HOLE, out);

	if (ret == -EOPNOTSUPP || ret == -EINVAL || (!ret && *out > stored) || ret == -ENXIO) {
		*out = stored;
		ret = 0;
	}
	if (!ret)       /* it goes on at least to the end of this block */
		*out = max_u64(round_up(*out, ifs_block_bytes(&inode->mapping.geom)), pos + ifs_block_bytes(&inode->mapping.geom));
	return ret;
}

static int seek_data(struct inode *inode, uint64_t pos, uint64_t size, uint64_t *out)
{
	uint64_t block = round_down(pos, ifs_block_bytes(&inode->mapping.geom)), busy, stored, end;
	int ret;

	if (MUTANT(M_SEEK_DEVICE_FIRST)) {
		ret = next_stored(inode, block, &stored);
		busy = next_busy(inode, block, &end);
	} else {
		busy = next_busy(inode, block, &end);
		ret = busy <= block ? 0 : next_stored(inode, block, &stored);
	}
	if (ret)
		return ret;
	*out = max_u64(pos, busy <= block ? busy : min_u64(busy, stored));
	return *out < size ? 0 : -ENXIO;
}

static int seek_hole(struct inode *inode, uint64_t pos, uint64_t size, uint64_t *out)
{
	uint64_t at = round_down(pos, ifs_block_bytes(&inode->mapping.geom)), busy_end, stored;
	int ret;

	while (at < size) {
		uint64_t busy = next_busy(inode, at, &busy_end);

		if (busy <= at) {
			at = busy_end;
			continue;
		}
		ret = next_stored(inode, at, &stored);
		if (ret)
			return ret;
		if (stored > at)
			break;
		ret = end_of_stored(inode, at, &at);
		if (ret)
			return ret;
	}
	*out = min_u64(max_u64(at, pos), size);
	return 0;
}

int seek_from(struct inode *inode, uint64_t pos, int whence, uint64_t *out)
{
	uint64_t size = inode_size(inode);

	if (pos >= size)
		return -ENXIO;
	return whence == SEEK_DATA ? seek_data(inode, pos, size, out) : seek_hole(inode, pos, size, out);
}

bool seek_is_hole(struct inode *inode, uint64_t pos)
{
	uint64_t end, stored;

	lockdep_assert_held(&inode->rwsem);
	return next_busy(inode, pos, &end) > pos && !next_stored(inode, pos, &stored) && stored > pos;
}
