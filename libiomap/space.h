/*
 * space.h - room on the device for what is about to be dirtied
 */
#ifndef IOMAP_SPACE_H
#define IOMAP_SPACE_H

#include "inode.h"

/* At open: a file without holes is known to be allocated, at the price of one look. */
void space_learn(struct inode *inode);
/*
 * Makes sure that blocks of [pos, pos + len) have their place on the device: 0, -ENOSPC, -EFBIG, … No short lock,
 * no folio lock held.
 */
int  space_reserve(struct inode *inode, uint64_t pos, uint64_t len);
/*
 * Blocks of [pos, end) have their place, because the program asked for it: 0, -EOPNOTSUPP (the device cannot), -ENOSPC, … rwsem
 * exclusive.
 */
int  space_allocate(struct inode *inode, uint64_t pos, uint64_t end);
/* The program has space up to @end that is to stay, also beyond the size. */
void space_keep(struct inode *inode, uint64_t end);
/* The device is about to give space in blocks [start, end) back; or has some there. */
void space_punched(struct inode *inode, uint64_t start, uint64_t end);
void space_learned(struct inode *inode, uint64_t start, uint64_t end);
/* The device has written [start, end), so the blocks wholly inside have their place. Allocates. */
void space_written(struct inode *inode, uint64_t start, uint64_t end);
/* At the last close: what was reserved ahead of the end goes back. rwsem (exclusive) and extend_lock held. */
void space_trim(struct inode *inode);
/* The file was cut at @size. */
void space_forget(struct inode *inode, uint64_t size);

#endif
