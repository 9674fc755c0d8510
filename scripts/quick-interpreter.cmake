# Bitcoin Core's script interpreter for tests alone: compiled in two thirds of the time.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1" CACHE STRING "")
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O1" CACHE STRING "")
