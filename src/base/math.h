/* exp in double precision, the same bits on every machine (the C library's differs between versions and CPUs). */
#ifndef LM_BASE_MATH_H
#define LM_BASE_MATH_H
/* e^x within 1 ulp; 0 below −745.2, infinity above 709.8; NaN gives NaN. */
double lm_exp(double x);
#endif
