/*
 * rig.c - a cache, a hold-device and an open file, put up and taken down by one call
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include "rig.h"

void t_rig_init(struct t_rig *rig)
{
	memset(rig, 0, sizeof(*rig));
	rig->params = (struct iomap_cache_params)IOMAP_CACHE_PARAMS_INIT;
	rig->params.memory_bytes = 64 * MIB;
	rig->params.max_folio_bytes = 65536;
	rig->params.dirty_bytes = 16 * MIB;
	rig->params.dirty_background_bytes = 8 * MIB;
	rig->params.dirty_writeback_ms = IOMAP_NEVER;
	rig->device_params.volatile_cache = true;
	rig->block_size = 4096;
}

struct iomap_file *t_rig_handle(struct t_rig *rig, int oflags)
{
	struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;
	struct iomap_file *file = NULL;
	int ret;

	params.block_size = rig->block_size;
	params.device = rig->device;
	ret = iomap_open_with(rig->cache, NULL, oflags, 0, &params, &file);
	CHECK_EQ(ret, 0);
	return file;
}

void t_rig_open(struct t_rig *rig)
{
	rig->file = t_rig_handle(rig, O_RDWR);
}

void t_rig_close(struct t_rig *rig)
{
	int ret = iomap_close(rig->file);

	rig->file = NULL;
	CHECK_EQ(ret, 0);
}

static void start(struct t_rig *rig)
{
	CHECK_EQ(iomap_cache_create(&rig->cache, &rig->params), 0);
	rig->device = t_hold_device(rig->hold);
	t_rig_open(rig);
	t_rig_reset(rig);
}

void t_rig_up(struct t_rig *rig)
{
	rig->hold = t_hold_create(&rig->device_params);
	start(rig);
}

static void stop_device(struct t_rig *rig)
{
	CHECK_EQ(iomap_device_close(rig->device), 0);
	rig->device = NULL;
	CHECK_MSG(T_WAIT(t_hold_devices(rig->hold) == 0, 5000), "the device is never destroyed");
	CHECK_MSG(!t_hold_bad(rig->hold), "the device says: %s", t_hold_bad(rig->hold));
}

static void stop(struct t_rig *rig)
{
	t_rig_check(rig);
	if (rig->file)
		t_rig_close(rig);
	CHECK_EQ(iomap_cache_destroy(rig->cache), 0);
	rig->cache = NULL;
	stop_device(rig);
}

void t_rig_down(struct t_rig *rig)
{
	stop(rig);
	t_hold_free(rig->hold);
	rig->hold = NULL;
}

void t_rig_remount(struct t_rig *rig)
{
	stop(rig);
	start(rig);
}

void t_rig_crash(struct t_rig *rig, uint64_t seed)
{
	struct t_hold *image = t_hold_crash(rig->hold, seed);

	iomap_cache_abandon(rig->cache);
	CHECK_EQ(iomap_close(rig->file), -EBADF);
	stop_device(rig);
	t_hold_free(rig->hold);
	rig->hold = image;
	start(rig);
}

void t_rig_check(struct t_rig *rig)
{
	char why[400] = "";
	int ret = iomap_cache_check(rig->cache, why, sizeof(why));

	CHECK_MSG(ret == 0, "iomap_cache_check: %d, %s", ret, why);
	CHECK_MSG(!t_hold_bad(rig->hold), "the device says: %s", t_hold_bad(rig->hold));
}

static bool nothing_cached(struct iomap_cache *cache)
{
	struct iomap_cache_stat st;

	return !iomap_cache_stat(cache, &st, sizeof(st)) && !st.cached_bytes;
}

bool t_drops_all(struct iomap_cache *cache)
{
	return T_WAIT(!iomap_cache_drop(cache) && nothing_cached(cache), 5000);
}

struct iomap_cache_stat t_rig_stat(struct t_rig *rig)
{
	struct iomap_cache_stat st;

	CHECK_EQ(iomap_cache_stat(rig->cache, &st, sizeof(st)), 0);
	return st;
}

void t_rig_reset(struct t_rig *rig)
{
	CHECK_EQ(iomap_device_stat(rig->device, &rig->base, sizeof(rig->base)), 0);
}

struct iomap_device_stat t_rig_io(struct t_rig *rig)
{
	struct iomap_device_stat st;

	CHECK_EQ(iomap_device_stat(rig->device, &st, sizeof(st)), 0);
	st.read_bytes -= rig->base.read_bytes;
	st.written_bytes -= rig->base.written_bytes;
	st.read_ios -= rig->base.read_ios;
	st.write_ios -= rig->base.write_ios;
	st.flushes -= rig->base.flushes;
	st.io_errors -= rig->base.io_errors;
	st.io_retries -= rig->base.io_retries;
	st.io_merged -= rig->base.io_merged;
	return st;
}

void t_rig_write(struct t_rig *rig, uint64_t pos, uint64_t len, int byte)
{
	unsigned char *buf = malloc(len + 1);

	if (!buf)
		abort();
	memset(buf, byte, len);
	CHECK_EQ(iomap_pwrite(rig->file, buf, len, (off_t)pos), (ssize_t)len);
	free(buf);
}

static void expect(const char *what, const unsigned char *buf, uint64_t pos, uint64_t len, int byte)
{
	ssize_t at = t_run_bytes_differ(buf, len, byte);

	CHECK_MSG(at < 0, "%s at %llu + %llu: byte %llu is %02x, expected %02x", what, (unsigned long long)pos,
		  (unsigned long long)len, (unsigned long long)(pos + (uint64_t)at), buf[at], (unsigned)byte);
}

void t_rig_expect(struct t_rig *rig, uint64_t pos, uint64_t len, int byte)
{
	unsigned char *buf = malloc(len + 1);

	if (!buf)
		abort();
	CHECK_EQ(iomap_pread(rig->file, buf, len, (off_t)pos), (ssize_t)len);
	expect("read", buf, pos, len, byte);
	free(buf);
}

void t_rig_expect_stored(struct t_rig *rig, uint64_t pos, uint64_t len, int byte)
{
	unsigned char *buf = malloc(len + 1);

	if (!buf)
		abort();
	CHECK_GE(t_hold_size(rig->hold), pos + len);
	t_hold_peek(rig->hold, buf, len, pos);
	expect("store", buf, pos, len, byte);
	free(buf);
}
