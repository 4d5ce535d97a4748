/*
 * iomap.h - kernel-style buffered I/O in user space: the umbrella over all public headers
 *
 * cache.h makes a page cache, file.h reads and writes files through it, device.h says what blocks are stored on, stat.h
 * tells what is going on.
 *
 * For all of it: functions return 0 or a count, or a negative errno; `errno` is not used. They are thread-safe unless
 * their comment says otherwise, and no thread registers itself. Bad input changes nothing and returns an error; a closed
 * handle or a bad non-NULL pointer is outside this. "Callback" below means a function of the program that the library
 * calls: log, allocator, a device's operations, a request's done(). After fork() the child's handles answer -EBADF (a
 * cache made in the child works), which the comments below do not repeat.
 */
#ifndef IOMAP_IOMAP_H
#define IOMAP_IOMAP_H

#include <iomap/base.h>
#include <iomap/cache.h>
#include <iomap/device.h>
#include <iomap/file.h>
#include <iomap/ops.h>
#include <iomap/stat.h>

#endif
