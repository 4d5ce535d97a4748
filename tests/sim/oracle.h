/*
 * oracle.h - what a file may show: to a read, as its size, after an fsync, after a crash
 *
 * The oracle keeps every operation with the moments of its begin and end. From those alone follows what is allowed: an operation
 * that ended before another began comes before it; what overlaps in time may come in either order. It knows nothing of the
 * library.
 */
#ifndef IOMAP_SIM_ORACLE_H
#define IOMAP_SIM_ORACLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ORACLE_FILES    4
#define ORACLE_OPS      512             /* that change something, of one file in one run */
#define ORACLE_MOST     (UINT64_C(1) << 22)     /* no file of a world is larger */

void oracle_start(void);
/* A file with @size bytes (@unstable: a crash may leave any mixture of what was written); the number of the write whose pattern they have. */
unsigned oracle_create(unsigned file, uint32_t block, uint64_t size, bool unstable);
/* What such a file holds; the bytes that write @id puts at [pos, pos + len). */
void oracle_pattern(unsigned id, uint64_t pos, void *buf, size_t len);

/* A write begins; its number, whose pattern it writes. ORACLE_FULL: leave it out. */
#define ORACLE_FULL UINT32_MAX
/* What a write that has returned promises: its bytes are on stable media; the device has them, and outlives the process; failed: half. */
enum { ORACLE_DURABLE = 1U << 0, ORACLE_STORED = 1U << 1, ORACLE_DIRECT = 1U << 2 };
unsigned oracle_write_begin(unsigned file, uint64_t pos, uint64_t len, unsigned promise);
/* It returned @ret (bytes or -errno): what was not said to be written may be there or not, now and later. */
void oracle_write_end(unsigned file, unsigned id, int64_t ret);
/* A call that grew the file and failed may have left any size on the way. */
void oracle_size_is_vague(unsigned file);
unsigned oracle_truncate_begin(unsigned file, uint64_t size);
void oracle_truncate_end(unsigned file, unsigned id, int ret);
/*
 * fallocate(): [pos, pos + len) becomes zeros (@zeros), and with @grows the file is at least so long afterwards. Its number or
 * ORACLE_FULL. @ret -EOPNOTSUPP: nothing has happened.
 */
unsigned oracle_clear_begin(unsigned file, uint64_t pos, uint64_t len, bool zeros, bool grows);
void oracle_clear_end(unsigned file, unsigned nr, int ret);
/* Appends need to know where they go: nobody else changes the size meanwhile. False: somebody does. */
/*
 * Appends whose order shows only afterwards: their bytes are made for a place by oracle_pattern(), and when they have ended it is said
 * where they went, in the order of places. Nobody else changed the size or read there meanwhile.
 */
unsigned oracle_new_id(void);
bool oracle_has_room(unsigned file);
void oracle_appended(unsigned file, uint64_t begun, unsigned id, uint64_t made_for, uint64_t pos, uint64_t len);
bool oracle_size_is_settled(unsigned file, uint64_t *size);

uint64_t oracle_read_begin(unsigned file);              /* a stamp */
/* A read of [pos, pos + len) that began at @since returned @n bytes. Fails the run if they are not allowed. @may_be_short: errors. */
void oracle_read_end(unsigned file, uint64_t since, uint64_t pos, size_t len, const void *buf, size_t n, bool may_be_short);
/* Nothing is under way: the size is @size. */
void oracle_check_size(unsigned file, uint64_t size);
/* lseek() from @pos, begun at @since, says that [from, to) has no data: it may read as zeros. */
void oracle_no_data(unsigned file, uint64_t since, uint64_t from, uint64_t to);
uint64_t oracle_least_size(unsigned file);              /* that it may have now */
bool oracle_busy(unsigned file);                        /* is an operation that may change the size under way? */

uint64_t oracle_sync_begin(void);                       /* a stamp */
void oracle_sync_end(unsigned file, uint64_t since);    /* it returned 0 */
void oracle_sync_range_end(unsigned file, uint64_t since, uint64_t pos, uint64_t end);  /* and was of these bytes only */

/*
 * After the end of everything: may @image, cut at @size, be left? @killed: the process died, not the machine: then no byte below the
 * size is one that nobody wrote. @faults: writes may have failed half way. NULL, or what is wrong with it. All operations under way count as begun.
 */
const char *oracle_check_image(unsigned file, const unsigned char *image, uint64_t size, bool killed, bool faults);
/*
 * The file on the disk grew from @from to @to, and holds @image: if the process died now, would that show bytes nobody wrote? Only where
 * nothing has failed. NULL, or where.
 */
const char *oracle_check_growth(unsigned file, const unsigned char *image, uint64_t from, uint64_t to);
/* As the first, of the bytes [@pos, @end) alone and of no size; @image begins at @pos. */
const char *oracle_check_bytes(unsigned file, const unsigned char *image, uint64_t pos, uint64_t end, bool killed, bool faults);
/* Some write failed for good: bytes may be missing below the size after a crash. */
void oracle_had_errors(unsigned file);

#endif
