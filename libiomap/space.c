/*
 * space.c - room on the device for what is about to be dirtied
 *
 * Where fallocate reserves, lack of space is the answer of the write that needs it, not of a later fsync. Blocks known to
 * be allocated are kept in a range set, so that only the first write to a block costs a call. Appends reserve ahead, twice as
 * much each time up to 64 MiB and beyond the size (KEEP_SIZE), which the last close gives back.
 *
 * Invariants: the set may forget blocks that are allocated (one call more), never claims others.
 * Kernel:     delayed allocation's reservations. Differs: the file system does the reserving, by fallocate(2).
 */
#include <errno.h>
#include <linux/falloc.h>
#include <unistd.h>
#include "mutant.h"
#include "space.h"

#define AHEAD_MIN UINT64_C(1048576)
#define AHEAD_MAX UINT64_C(67108864)

void space_learn(struct inode *inode)
{
	uint64_t size = device_size(inode->device), hole;
	struct stat st;

	store_relaxed(&inode->reserves, inode->device->ops->allocate && inode_ends_device(inode));
	if (!load_relaxed(&inode->reserves) || !size)
		return;
	if (inode->device->file && (inode->device->file->fstat(inode->device, &st) || (uint64_t)st.st_blocks * 512 < size))
		return;
	if (device_seek(inode->device, 0, SEEK_HOLE, &hole) || hole < size)
		return;
	rangeset_add(&inode->allocated, 0, round_up(size, ifs_block_bytes(&inode->mapping.geom)));
}

void space_learned(struct inode *inode, uint64_t start, uint64_t end)
{
	rangeset_reserve(&inode->allocated, 1);
	rangeset_add(&inode->allocated, start, end);
}

void space_written(struct inode *inode, uint64_t start, uint64_t end)
{
	uint64_t bs = ifs_block_bytes(&inode->mapping.geom);

	start = round_up(start, bs);
	end = round_down(end, bs);
	if (load_relaxed(&inode->reserves) && start < end)
		space_learned(inode, start, end);
}

int space_reserve(struct inode *inode, uint64_t pos, uint64_t len)
{
	uint64_t bs = ifs_block_bytes(&inode->mapping.geom), start = round_down(pos, bs), end = round_up(pos + len, bs);
	struct range gap;

	if (end > INT64_MAX)
		end = INT64_MAX;        /* the last block of the largest file */
	while (load_relaxed(&inode->reserves) && rangeset_next_gap(&inode->allocated, start, end, &gap)) {
		uint64_t ahead = 0;
		int ret;

		if (gap.end == end && gap.start >= inode_size(inode) && gap.start <= round_up(inode_size(inode), bs)) {
			ahead = load_relaxed(&inode->reserve_ahead);
			ahead = min_u64(ahead ? ahead * 2 : len < 65536 ? 0 : AHEAD_MIN, AHEAD_MAX);
			if (gap.end > INT64_MAX - ahead)
				ahead = 0;
		}
		ret = device_allocate(inode->device, gap.start, gap.end - gap.start + ahead, FALLOC_FL_KEEP_SIZE);
		if (ret && ahead) {     /* no room, or no permission, for more than is needed */
			ahead = 0;
			ret = device_allocate(inode->device, gap.start, gap.end - gap.start, FALLOC_FL_KEEP_SIZE);
		}
		if (ret == -EOPNOTSUPP || ret == -ENOSYS) {
			store_relaxed(&inode->reserves, false);
			break;
		}
		if (ret)
			return ret;
		space_learned(inode, gap.start, gap.end + ahead);
		if (ahead) {
			store_relaxed(&inode->reserve_ahead, ahead);
			if (gap.end + ahead > load_relaxed(&inode->reserved_end))
				store_relaxed(&inode->reserved_end, gap.end + ahead);
		} else if (gap.end == end && end > inode_size(inode) && !load_relaxed(&inode->reserve_ahead)) {
			store_relaxed(&inode->reserve_ahead, 32768);    /* a second append in a row reserves ahead */
		}
	}
	return 0;
}

int space_allocate(struct inode *inode, uint64_t pos, uint64_t end)
{
	uint64_t bs = ifs_block_bytes(&inode->mapping.geom), at = round_down(pos, bs), stop = min_u64(round_up(end, bs), INT64_MAX);
	struct range gap;

	if (!inode->device->ops->allocate)
		return -EOPNOTSUPP;
	/* The set may forget what it was just told: go on behind that. */
	for (; at < stop && rangeset_next_gap(&inode->allocated, at, stop, &gap); at = gap.end) {
		int ret = device_allocate(inode->device, gap.start, gap.end - gap.start, FALLOC_FL_KEEP_SIZE);

		if (ret)
			return ret == -ENOSYS ? -EOPNOTSUPP : ret;
		space_learned(inode, gap.start, gap.end);
		store_release(&inode->size_unflushed, true);    /* it is a promise, to be kept over a crash by fsync */
	}
	return 0;
}

void space_keep(struct inode *inode, uint64_t end)
{
	if (end > load_relaxed(&inode->kept_end))
		store_relaxed(&inode->kept_end, end);
}

void space_punched(struct inode *inode, uint64_t start, uint64_t end)
{
	if (!MUTANT(M_PUNCH_KEEPS_SPACE))
		rangeset_remove(&inode->allocated, start, end);
}

void space_trim(struct inode *inode)
{
	uint64_t size = inode_size(inode);

	if (load_relaxed(&inode->kept_end) > size)      /* there is no way to cut off only what is behind that */
		return;
	if (load_relaxed(&inode->reserved_end) <= size || !load_relaxed(&inode->reserves) || device_size(inode->device) != size)
		return;
	device_set_size(inode->device, size);   /* the same size: a file system gives blocks beyond it back; if not, no harm is done */
	rangeset_remove(&inode->allocated, round_up(size, ifs_block_bytes(&inode->mapping.geom)), UINT64_MAX);
	store_relaxed(&inode->reserved_end, 0);
	store_relaxed(&inode->reserve_ahead, 0);
}

void space_forget(struct inode *inode, uint64_t size)
{
	rangeset_remove(&inode->allocated, round_up(size, ifs_block_bytes(&inode->mapping.geom)), UINT64_MAX);
	store_relaxed(&inode->reserved_end, 0);
	store_relaxed(&inode->kept_end, 0);
}
