/*
 * disk-store.h - the bytes of one file, as they are, as they were, and as they would be after a power cut
 */
#ifndef IOMAP_SIM_DISK_STORE_H
#define IOMAP_SIM_DISK_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "disk.h"

#define DISK_UNIT 4096u                 /* what space is given out in */

struct disk_unit;
struct disk_version;

/* Memory for all files of one world; there is never too little, and taking it is no place to switch threads. */
struct disk_pool {
	struct disk_version *free;
	uint64_t allocated;             /* units in all files together */
};

/*
 * Which changes a flush makes durable. Each change carries the number of the write that made it, given out when that
 * write began: all before @before, but those that had not ended.
 */
struct disk_cover {
	uint64_t before;
	const uint64_t *in_flight;
	unsigned nr_in_flight;
};

/* From the file's creation to the end of the world. */
struct disk_store {
	struct disk_pool *pool;
	uint64_t size, durable_size;
	struct { uint64_t size, id; } *sizes;   /* since the last flush, oldest first; the last one is @size */
	unsigned nr_sizes, room_sizes;
	struct disk_unit **units;               /* ascending; may be there without space, for what was in it */
	unsigned nr_units, room_units, hint;
};

void *disk_alloc(size_t bytes);                 /* cleared */

void store_init(struct disk_store *s, struct disk_pool *pool);
uint64_t store_allocated(const struct disk_store *s);                            /* bytes, in whole units */
uint64_t store_missing(const struct disk_store *s, uint64_t pos, uint64_t len);  /* units there without space */
void store_allocate(struct disk_store *s, uint64_t pos, uint64_t len);           /* contents stay */
/* New contents for part of one sector, or all of it; its unit gets space if it has none. */
void store_write(struct disk_store *s, uint64_t pos, const void *data, unsigned len, uint64_t id);
void store_read(struct disk_store *s, uint64_t pos, void *buf, uint64_t len);    /* the newest, beyond the size too */
void store_mark_data(struct disk_store *s, uint64_t pos, uint64_t len); /* what has space there is no hole now */
void store_zero(struct disk_store *s, uint64_t pos, uint64_t end, uint64_t id);  /* where there is anything */
/* What lies in [pos, pos + len) reads as zeros; whole units are holes then, and with @give_back without space. */
void store_clear(struct disk_store *s, uint64_t pos, uint64_t len, bool give_back, uint64_t id);
void store_grow(struct disk_store *s, uint64_t size, uint64_t id);      /* nothing if it is that large already */
void store_truncate(struct disk_store *s, uint64_t size, uint64_t id);           /* up or down */
bool store_seek(struct disk_store *s, uint64_t pos, bool data, uint64_t *out);   /* false: none before the end */
void store_flush(struct disk_store *s, const struct disk_cover *c);
void store_flush_failed(struct disk_store *s, const struct disk_cover *c);       /* what it covers has to be written again */
uint64_t store_image(struct disk_store *s, enum disk_crash how, struct sim_rng *r, void *buf, uint64_t max);

#endif
