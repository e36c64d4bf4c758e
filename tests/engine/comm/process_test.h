// The test binary plays ranks of real-process tests, too: main calls this when it was spawned as one.
#pragma once

namespace tutti {

// argv: --rank-process BACKEND RANK WORLD TIMEOUT_MS; descriptor 3 talks to the test, 4 is the shared memory.
int RunRankProcess(int argc, char** argv);

}  // namespace tutti
