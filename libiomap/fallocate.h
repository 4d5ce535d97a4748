/*
 * fallocate.h - space asked for, given back, or turned into zeros
 */
#ifndef IOMAP_FALLOCATE_H
#define IOMAP_FALLOCATE_H

#include "file.h"

/* fallocate(2) on [pos, end), not empty, with a mode that is known to be one of those there are. No lock held. */
int fallocate_range(struct iomap_file *file, int mode, uint64_t pos, uint64_t end);

#endif
