/*
 * crash-device.h - an engine's device in memory that can show what a power cut would have left
 *
 * Everything that was written is kept in order, with the flushes between. From this log every moment's legal images can be
 * made afterwards, as many as wanted: each 512-byte sector holds what it held at the last flush, or any of the versions
 * written to it since. So one run of a program gives thousands of power cuts.
 *
 * A moment is a number of entries of the log: 0 is before the first. Entry n is a write request, or a flush that has just
 * completed; a cut at moment n has seen the entries before n.
 */
#ifndef TESTS_CRASH_DEVICE_H
#define TESTS_CRASH_DEVICE_H

#include <iomap/iomap.h>

enum { T_CRASH_SECTOR = 512 };

struct t_crash;         /* the device's contents and its log; outlives the device */

/* @bytes of zeros, or of what is at @image; a multiple of 4096. Fails the program where memory is short. */
struct t_crash *t_crash_create(uint64_t bytes, const void *image);
void t_crash_free(struct t_crash *crash);

/* A device on it, at most one at a time; the caller's. The log begins with the first for which @log is true. */
struct iomap_device *t_crash_device(struct t_crash *crash, bool log);

/* From the @after-th write or flush from now on (0: the next) each fails with @error; UINT64_MAX: none does any more. */
void t_crash_fail(struct t_crash *crash, uint64_t after, int error);

uint64_t t_crash_moments(struct t_crash *crash);        /* entries so far */
const unsigned char *t_crash_bytes(struct t_crash *crash); /* what is there, while no device works on it */
/* What broke the contract of a device (a write out of bounds, memory out of alignment …), or NULL. */
const char *t_crash_complaint(struct t_crash *crash);

/* --- images ----------------------------------------------------------------------------------------------- */

enum t_crash_how {
	T_CRASH_OLDEST,         /* nothing that was not flushed */
	T_CRASH_NEWEST,         /* everything */
	T_CRASH_RANDOM,         /* for each sector one of its versions */
	T_CRASH_TORN,           /* everything but one sector in a few, which are older */
	T_CRASH_LATE,           /* nothing but one sector in a few, which are newer */
	T_CRASH_HOWS,
};

/* Goes through a log from the front. */
struct t_crash_replay;

struct t_crash_replay *t_crash_replay(struct t_crash *crash);
void t_crash_replay_free(struct t_crash_replay *replay);
void t_crash_replay_to(struct t_crash_replay *replay, uint64_t moment);         /* forwards only */
uint64_t t_crash_replay_pending(struct t_crash_replay *replay);                /* versions not flushed at that moment */
void t_crash_image(struct t_crash_replay *replay, enum t_crash_how how, uint64_t *random, void *image);

#endif
