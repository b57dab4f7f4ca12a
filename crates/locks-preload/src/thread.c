/* A variable of each thread, in memory that it has from the beginning. For others the dynamic
 * linker may call the program's allocator, which may be waiting for a mutex. Stable Rust has none
 * of this kind. */
static _Thread_local int policy __attribute__((tls_model("initial-exec")));

int *nearside_policy_of_thread(void)
{
	return &policy;
}
