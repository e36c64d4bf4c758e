#include <algorithm>

#include "base/check.h"
#include "base/digest.h"
#include "engine/checkpoint/writer.h"
#include "tutti/v1/checkpoint.pb.h"

namespace tutti {
namespace {

std::string BytesOfHex(const std::string& hex) {
  TUTTI_CHECK(hex.size() == 64, "'{}'", hex);
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

}  // namespace

std::string WeightsSha256(std::vector<TensorDigest> tensors) {
  std::erase_if(tensors, [](const TensorDigest& t) {
    return t.role != v1::TENSOR_ROLE_PARAMETER && t.role != v1::TENSOR_ROLE_STATISTIC;
  });
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorDigest& a, const TensorDigest& b) { return a.name < b.name; });
  Sha256 sha;
  for (const TensorDigest& tensor : tensors) {
    sha.Update(tensor.name.c_str(), tensor.name.size() + 1);
    const auto axes = static_cast<int64_t>(tensor.shape.size());
    sha.Update(&axes, sizeof axes);
    sha.Update(tensor.shape.data(), tensor.shape.size() * sizeof(int64_t));
    const std::string elements = BytesOfHex(tensor.sha256);
    sha.Update(elements.data(), elements.size());
  }
  return sha.Hex();
}

std::string WeightsSha256(const std::map<std::string, LoadedTensor>& tensors) {
  std::vector<TensorDigest> digests;
  for (const auto& [name, tensor] : tensors) {
    Sha256 sha;
    sha.Update(tensor.data.data(), tensor.data.size() * sizeof(float));
    digests.push_back({name, tensor.role, tensor.shape, sha.Hex()});
  }
  return WeightsSha256(std::move(digests));
}

}  // namespace tutti
