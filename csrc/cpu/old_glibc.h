// Binds the functions that glibc 2.32 and 2.34 moved from libpthread to libc to the versions that they had before: the
// same code under two versions (`objdump -T libc.so.6` shows one address). A library that is built on a new system then
// loads on old ones, too.
#pragma once

#include <features.h>

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__ILP32__)
__asm__(".symver pthread_attr_setstacksize, pthread_attr_setstacksize@GLIBC_2.2.5");
__asm__(".symver pthread_create, pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_join, pthread_join@GLIBC_2.2.5");
__asm__(".symver pthread_sigmask, pthread_sigmask@GLIBC_2.2.5");
#endif
