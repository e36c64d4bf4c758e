// A job file that is right, for tests that then change one thing.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "job/job_file.h"

namespace tutti {

// Line numbers of the sections are part of what the tests check.
inline constexpr char kJob[] =
    "apiVersion: tutti/v1\n"                                 // 1
    "kind: TrainingJob\n"                                    // 2
    "metadata: {name: job}\n"                                // 3
    "spec:\n"                                                // 4
    "  model:\n"                                             // 5
    "    layers:\n"                                          // 6
    "      - flatten\n"                                      // 7
    "      - dense: {units: 10}\n"                           // 8
    "  data:\n"                                              // 9
    "    train: {images: images.idx, labels: labels.idx}\n"  // 10
    "    classes: 10\n"                                      // 11
    "  batch:\n"                                             // 12
    "    global: 128\n"                                      // 13
    "  optimizer:\n"                                         // 14
    "    type: sgd\n"                                        // 15
    "    learningRate: 0.05\n"                               // 16
    "  train:\n"                                             // 17
    "    epochs: 3\n"                                        // 18
    "  numerics: {shards: 4, threads: 1}\n"                  // 19
    "  resources: {ranks: 2}\n";                             // 20

inline std::string Replace(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

inline StatusOr<LoadedJob> Load(const std::string& text, std::vector<std::string> overrides = {}) {
  return ParseJobFile(text, "job.yaml", "/jobs",
                      {.overrides = std::move(overrides), .working_directory = "/work", .cores_available = 8});
}

// The message of the refusal; "" when the file was accepted.
inline std::string Errors(const std::string& text, std::vector<std::string> overrides = {}) {
  const auto job = Load(text, std::move(overrides));
  if (job.ok()) return "";
  EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument);
  return Message(job.status());
}

}  // namespace tutti
