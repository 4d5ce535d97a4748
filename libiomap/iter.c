/*
 * iter.c - walk a byte range mapping by mapping
 *
 * Each iomap_begin() that succeeds gets its iomap_end(), told how far the body came. What an engine answers is not trusted: a mapping
 * that does not hold the place asked for, lies across the device's blocks or is of no known type ends the walk with -EIO.
 *
 * The plain file is an engine, too: byte n of the file is byte n of the device, and beginning a write is to make sure of its space.
 *
 * Kernel: fs/iomap/iter.c. Differs: a body's error stays even where it had advanced; the caller looks at it->pos.
 */
#include <errno.h>
#include "iter.h"
#include "mutant.h"
#include "space.h"

#define KNOWN_FLAGS (IOMAP_F_NEW | IOMAP_F_DIRTY | IOMAP_F_SHARED | IOMAP_F_MERGED | IOMAP_F_XATTR | IOMAP_F_BOUNDARY | IOMAP_F_PRIVATE)

/* --- the plain file ---------------------------------------------------------------------------------------- */

/*
 * Not all of a write has room. Space comes in blocks, so fewer blocks may fit; the largest size may lie inside one.
 */
static uint64_t shorter(uint64_t pos, uint64_t len, uint64_t bs, bool bytes)
{
	uint64_t first = bs - pos % bs;

	if (len > first)
		return first + round_down((len - first) / 2, bs);
	return bytes ? len / 2 : 0;
}

static int plain_begin(void *priv, uint64_t pos, uint64_t len, unsigned flags, struct iomap *map, struct iomap *src)
{
	struct inode *inode = priv;
	int ret = flags & IOMAP_WRITE ? space_reserve(inode, pos, len) : 0;

	(void)src;
	while ((ret == -ENOSPC || ret == -EFBIG || ret == -EDQUOT) && len > 1) {
		uint64_t less = shorter(pos, len, ifs_block_bytes(&inode->mapping.geom), ret == -EFBIG);

		if (!less)
			break;
		len = less;
		ret = space_reserve(inode, pos, len);
	}
	*map = (struct iomap){ .type = IOMAP_MAPPED, .addr = pos, .offset = pos, .length = len };
	return ret;
}

const struct iomap_ops plain_ops = { .iomap_begin = plain_begin };

/* --- the walk ---------------------------------------------------------------------------------------------- */

static bool holds(const struct inode *inode, const struct iomap *map, uint64_t pos)
{
	uint64_t bs = ifs_block_bytes(&inode->mapping.geom);

	if (map->type > IOMAP_INLINE || (map->flags & ~KNOWN_FLAGS) || !map->length || map->offset > pos ||
	    pos - map->offset >= map->length || map->length > UINT64_MAX - map->offset)
		return false;
	if (map->device && map->device != inode->device)
		return false;
	if (map->type == IOMAP_INLINE)
		return map->inline_data && !map->offset;
	if ((map->offset | map->length) & (bs - 1))
		return false;
	return (map->type != IOMAP_MAPPED && map->type != IOMAP_UNWRITTEN) || !(map->addr & (inode->device->info.block - 1));
}

static bool is_good(const struct inode *inode, const struct iter *it)
{
	if (!inode->mapped)
		return true;
	return holds(inode, &it->map, it->pos) &&
	       (it->src.type == IOMAP_HOLE || (it->src.type == IOMAP_MAPPED && holds(inode, &it->src, it->pos)) ||
		(it->src.type == IOMAP_UNWRITTEN && holds(inode, &it->src, it->pos)));
}

void iter_init(struct iter *it, struct inode *inode, uint64_t pos, uint64_t len, unsigned flags)
{
	*it = (struct iter){ .inode = inode, .pos = pos, .left = len, .flags = flags };
}

static uint64_t end_of(const struct iomap *map) { return map->offset + map->length; }

uint64_t iter_length(const struct iter *it)
{
	uint64_t len = min_u64(it->left, end_of(&it->map) - it->pos);

	return it->src.type == IOMAP_HOLE ? len : min_u64(len, end_of(&it->src) - it->pos);
}

void iter_advance(struct iter *it, uint64_t n)
{
	IOMAP_BUG_ON(n > iter_length(it));
	it->pos += n;
	it->left -= n;
}

bool iter_valid(struct iter *it)
{
	const struct iomap_ops *ops = it->inode->ops;

	if (!ops->iomap_valid || MUTANT(M_MAP_NOT_ASKED) || ops->iomap_valid(it->inode->ops_priv, &it->map))
		return true;
	it->map.flags |= IOMAP_F_STALE;
	return false;
}

/* The mapping in hand is done with. */
static int end_map(struct iter *it)
{
	const struct iomap_ops *ops = it->inode->ops;
	uint64_t advanced = it->pos - it->begun, len = min_u64(it->asked, end_of(&it->map) - it->begun);
	int ret = 0;

	if (it->src.type != IOMAP_HOLE)
		len = min_u64(len, end_of(&it->src) - it->begun);
	if (ops->iomap_end && !(MUTANT(M_END_SKIPPED) && it->status < 0))
		ret = ops->iomap_end(it->inode->ops_priv, it->begun, len, (int64_t)min_u64(advanced, len), it->flags, &it->map);   /* inline data ends inside a block */
	return ret < 0 && !advanced ? ret : 0;
}

int iter_next(struct iter *it)
{
	struct inode *inode = it->inode;
	int ret;

	if (it->map.length) {
		bool stale = it->map.flags & IOMAP_F_STALE, moved = it->pos != it->begun;

		ret = end_map(it);
		it->map = it->src = (struct iomap){ 0 };
		if (ret)
			return ret;
		if (it->status < 0)
			return it->status;
		if (!moved && !stale)
			return 0;
	}
	if (!it->left)
		return 0;
	it->begun = it->pos;
	it->asked = it->left;
	it->status = 0;
	ret = inode->ops->iomap_begin(inode->ops_priv, it->pos, it->left, it->flags, &it->map, &it->src);
	if (ret < 0 || !is_good(inode, it)) {
		if (ret >= 0) {
			it->status = -EIO;
			if (inode->ops->iomap_end)
				inode->ops->iomap_end(inode->ops_priv, it->pos, it->left, 0, it->flags, &it->map);
		}
		it->map.length = 0;
		return ret < 0 ? ret : -EIO;
	}
	return 1;
}
