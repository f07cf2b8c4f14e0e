/* What every unit test includes: cmocka in its required order, and the fixtures' place. */
#ifndef LM_TESTS_CHECK_H
#define LM_TESTS_CHECK_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#endif
