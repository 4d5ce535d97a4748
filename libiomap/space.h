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
/* At the last close: what was reserved ahead of the end goes back. rwsem (exclusive) and extend_lock held. */
void space_trim(struct inode *inode);
/* The file was cut at @size. */
void space_forget(struct inode *inode, uint64_t size);

#endif
