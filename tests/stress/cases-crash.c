/*
 * cases-crash.c - bugs that others reported, as short sequences with the exact right result: what is there after a crash
 */
#define _GNU_SOURCE
#include "cases.h"

enum { SECTOR = 512, SECTORS = 32, SIZE = SECTORS * SECTOR };

/* How many sectors of SIZE bytes are new; each must be all of the one or all of the other. */
static unsigned new_sectors(const unsigned char *buf, int old, int new)
{
	unsigned nr = 0;

	for (unsigned i = 0; i < SECTORS; i++) {
		int is = buf[i * SECTOR];

		CHECK_MSG(is == old || is == new, "sector %u begins with %02x", i, is);
		CHECK_BYTES(buf + i * SECTOR, SECTOR, is);
		nr += is == new;
	}
	return nr;
}

/*
 * C16: crashes while the four blocks are on their way, each by itself, and while what has come is in the device's cache. Every eighth
 * is one that the library lives through, too.
 */
static void a_torn_write_of_several_blocks_shows_whole_sectors(void)
{
	unsigned char buf[2 * SIZE];
	unsigned torn = 0, images = 0;
	struct t_rig rig;
	int old = 'A', new = 'N';

	t_rig_init(&rig);
	rig.device_params.max_bytes = 4096;
	rig.device_params.shuffle = true;
	rig.device_params.jitter_ns = 300000;
	t_rig_up(&rig);
	t_rig_write(&rig, 0, SIZE, old);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	while (images < rounds(200, 2000)) {
		t_rig_write(&rig, 0, SIZE, new);
		CHECK_EQ(iomap_fadvise(rig.file, 0, 0, POSIX_FADV_DONTNEED), 0);        /* starts writing */
		do {
			struct t_hold *image = t_hold_crash(rig.hold, images);
			unsigned nr;

			CHECK_EQ(t_hold_size(image), SIZE);
			t_hold_peek(image, buf, SIZE, 0);
			nr = new_sectors(buf, old, new);
			torn += nr > 0 && nr < SECTORS;
			t_hold_free(image);
		} while (++images % 8);
		t_rig_crash(&rig, images);
		CHECK_EQ(iomap_size(rig.file), SIZE);
		CHECK_EQ(iomap_pread(rig.file, buf, sizeof(buf), 0), SIZE);
		new_sectors(buf, old, new);
		t_rig_write(&rig, 0, SIZE, new);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		t_rig_crash(&rig, images);
		CHECK_EQ(iomap_size(rig.file), SIZE);
		t_rig_expect(&rig, 0, SIZE, new);
		old = new;
		new = new == 'Z' ? 'B' : new + 1;
	}
	CHECK_MSG(torn > 0, "no image was torn: nothing was tested");
	t_rig_down(&rig);
}

/* C21, buffered, by the flag of the handle; what goes around the cache is in direct.c */
static void a_write_through_an_o_sync_handle_survives_a_crash(void)
{
	static const int oflags[] = { O_SYNC, O_DSYNC };
	unsigned char *buf = malloc(2 * MIB);

	for (unsigned i = 0; i < 2; i++) {
		struct iomap_file *file;
		struct t_rig rig;

		t_rig_init(&rig);
		t_rig_up(&rig);
		file = t_rig_handle(&rig, O_RDWR | oflags[i]);
		memset(buf, 0x5a, MIB);
		CHECK_EQ(iomap_pwrite(file, buf, MIB, 0), (ssize_t)MIB);
		t_rig_close(&rig);
		rig.file = file;
		t_rig_crash(&rig, 21 + i);
		CHECK_EQ(iomap_size(rig.file), (off_t)MIB);
		CHECK_EQ(iomap_pread(rig.file, buf, 2 * MIB, 0), (ssize_t)MIB);
		CHECK_BYTES(buf, MIB, 0x5a);
		t_rig_down(&rig);
	}
	free(buf);
}

static const struct t_run_case cases[] = {
	T_RUN_FOR(a_torn_write_of_several_blocks_shows_whole_sectors, 60),
	T_RUN(a_write_through_an_o_sync_handle_survives_a_crash),
};

int main(int argc, char **argv)
{
	return t_run_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
