/*
 * rig.h - a cache, a hold-device and an open file, put up and taken down by one call
 *
 * Starts from the geometry of the regression cases: blocks of 4096, device sectors of 512, folios up to 64 KiB, 64 MiB of
 * memory, background limit 8 MiB, hard limit 16 MiB, no periodic flusher. Everything here fails the test by itself.
 */
#ifndef TESTS_RIG_H
#define TESTS_RIG_H

#include <iomap/iomap.h>
#include "hold-device.h"
#include "run.h"

struct t_rig {
	/* set before t_rig_up() */
	struct iomap_cache_params params;
	struct t_hold_params device_params;
	uint32_t block_size;
	/* valid while it is up */
	struct iomap_cache *cache;
	struct t_hold *hold;
	struct iomap_device *device;
	struct iomap_file *file;
	struct iomap_device_stat base;          /* device statistics at t_rig_reset() */
};

#define MIB (1048576ULL)
#define KIB (1024ULL)

void t_rig_init(struct t_rig *rig);             /* the geometry above; change what the test needs, then up */
void t_rig_up(struct t_rig *rig);
void t_rig_down(struct t_rig *rig);             /* closes and destroys, all of it without error, and checks all */
void t_rig_close(struct t_rig *rig);            /* close the file, without error */
void t_rig_open(struct t_rig *rig);             /* and open it again */
void t_rig_remount(struct t_rig *rig);          /* close all in good order, a new cache, open again */
void t_rig_crash(struct t_rig *rig, uint64_t seed);     /* abandon the cache, go on with what the device holds then */

struct iomap_file *t_rig_handle(struct t_rig *rig, int oflags); /* another handle on the file */

/* Everything at rest: the checker of the cache, and the contract of the device. */
void t_rig_check(struct t_rig *rig);

struct iomap_cache_stat t_rig_stat(struct t_rig *rig);
/*
 * iomap_cache_drop() until nothing is cached, where all is clean: a folio stays for a moment in the hands of who has just written it,
 * though the fsync is over. False: something stays.
 */
bool t_drops_all(struct iomap_cache *cache);
void t_rig_reset(struct t_rig *rig);                            /* stats_reset() of the cases */
struct iomap_device_stat t_rig_io(struct t_rig *rig);           /* device statistics since then */

/* One byte, len times; full counts. */
void t_rig_write(struct t_rig *rig, uint64_t pos, uint64_t len, int byte);
void t_rig_expect(struct t_rig *rig, uint64_t pos, uint64_t len, int byte);            /* by iomap_pread() */
void t_rig_expect_stored(struct t_rig *rig, uint64_t pos, uint64_t len, int byte);     /* in the store itself */

#endif
