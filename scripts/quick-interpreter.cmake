# Bitcoin Core's script interpreter for tests only, compiled in a third of the time: with fewer optimisations,
# and with several sources compiled as one, so that their headers are read once.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1" CACHE STRING "")
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O1" CACHE STRING "")
set(CMAKE_UNITY_BUILD ON CACHE BOOL "")
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8 CACHE STRING "")
# The interpreter's own sources stay separate: linking one of them pulls in everything compiled with it and
# its dependencies. One of the others, `bitcoinkernel.cpp`, spends a tenth of a second before `main`.
get_property(trying GLOBAL PROPERTY IN_TRY_COMPILE)
if(NOT trying)
    set(alone hash.cpp primitives/transaction.cpp pubkey.cpp script/interpreter.cpp script/script.cpp
        script/script_error.cpp uint256.cpp)
    list(TRANSFORM alone PREPEND "${CMAKE_SOURCE_DIR}/src/")
    cmake_language(DEFER CALL set_source_files_properties ${alone}
        DIRECTORY src/kernel PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endif()
