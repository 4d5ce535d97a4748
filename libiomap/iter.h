/*
 * iter.h - walk a byte range mapping by mapping
 *
 *	iter_init(&it, inode, pos, len, IOMAP_WRITE);
 *	while ((ret = iter_next(&it)) > 0)
 *		it.status = body(&it);          reads it.map, calls iter_advance()
 *
 * A body that advances by nothing and reports no error ends the walk, unless it found the mapping stale: then it is asked for again.
 */
#ifndef IOMAP_ITER_H
#define IOMAP_ITER_H

#include <iomap/ops.h>
#include "inode.h"

struct iter {
	struct inode *inode;
	uint64_t pos, left;             /* what is still to be done */
	unsigned flags;                 /* IOMAP_WRITE, … */
	int status;                     /* of the last body */
	struct iomap map, src;          /* map.length 0: none is held */
	uint64_t begun, asked;          /* pos and left when the mapping was got */
};

void iter_init(struct iter *it, struct inode *inode, uint64_t pos, uint64_t len, unsigned flags);
/* 1: it->map holds it->pos; 0: all done, or the body stopped; -errno. Ends the mapping before; must be called until it is not 1. */
int  iter_next(struct iter *it);
/* Bytes from it->pos on for which it->map and its source hold. */
uint64_t iter_length(const struct iter *it);
void iter_advance(struct iter *it, uint64_t n);
/* The folio at it->pos is locked: does the mapping still hold? If not the body returns with status 0. */
bool iter_valid(struct iter *it);
/* Where bytes that are there already are read from. */
static inline const struct iomap *iter_source(const struct iter *it) { return it->src.type != IOMAP_HOLE ? &it->src : &it->map; }

/* The mapping of a file whose byte n is byte n of its device: what inode_open() sets where the engine brings none. */
extern const struct iomap_ops plain_ops;
/* Bytes of the file from here on are not stored anywhere: the device's end, or where an engine maps, the file's. */
static inline uint64_t inode_stored_end(const struct inode *inode)
{
	return inode->mapped ? inode_size(inode) : device_size(inode->device);
}

#endif
