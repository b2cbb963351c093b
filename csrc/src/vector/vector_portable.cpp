#define FORERUN_VECTOR_SET portable_vector_set
#include "vector_impl.h"
