/*
 * seek.h - holes and data
 */
#ifndef IOMAP_SEEK_H
#define IOMAP_SEEK_H

#include "inode.h"

/*
 * SEEK_DATA or SEEK_HOLE from @pos below the file's size: 0 and a position in *@out, -ENXIO (no data any more), or what the device
 * said. rwsem held.
 */
int  seek_from(struct inode *inode, uint64_t pos, int whence, uint64_t *out);
/* Is nothing stored in the block at @pos, nor on its way there? Only for who keeps writers out: rwsem exclusive. */
bool seek_is_hole(struct inode *inode, uint64_t pos);

#endif
