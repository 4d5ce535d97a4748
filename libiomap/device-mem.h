/*
 * device-mem.h - what tests may do to a memory device behind its back
 */
#ifndef IOMAP_DEVICE_MEM_H
#define IOMAP_DEVICE_MEM_H

#include <stddef.h>
#include <stdint.h>

struct iomap_device;

/*
 * The raw contents, past the size too: no request, no hook, no counter, no change of size.
 * 0; -EINVAL: not a memory device, or past 2^63; -ENOMEM.
 */
int device_mem_peek(struct iomap_device *dev, uint64_t pos, void *buf, size_t len);
int device_mem_poke(struct iomap_device *dev, uint64_t pos, const void *buf, size_t len);

#endif
