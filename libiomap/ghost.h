/*
 * ghost.h - fingerprints of evicted folios
 *
 * One table of fixed size a cache: set-associative, 32-bit fingerprints, oldest of a set replaced. A refault that finds its
 * fingerprint goes straight to the main queue. Losing an entry or a false match costs a hint, never correctness.
 */
#ifndef IOMAP_GHOST_H
#define IOMAP_GHOST_H

#include "mem.h"
#include "platform.h"

struct ghost { struct mem *mem; struct mutex lock; uint32_t *slots; uint32_t nr_sets; };

int  ghost_init(struct ghost *g, struct mem *mem, uint64_t entries);    /* rounded up to whole sets; 0 remembers nothing; -ENOMEM */
void ghost_fini(struct ghost *g);
void ghost_insert(struct ghost *g, uint64_t file, uint64_t index);
bool ghost_take(struct ghost *g, uint64_t file, uint64_t index);        /* was it there? It is gone now */

#endif
