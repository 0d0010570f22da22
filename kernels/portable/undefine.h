// What a kernel file and portable.h define for one kernel, where C++ reads several: no include
// guard.
#undef THREADS
#undef STORAGE
#undef SHARED_ARRAYS
#undef WITH_FORMULAS
#undef WITH_REDUCTIONS
#undef WITH_WHOLE_FORMULAS
#undef WITH_WHOLE_REDUCTIONS
#undef LOAD_NUMBER
#undef BYTES
#undef LOAD
#undef STORE
#undef ROUNDED
