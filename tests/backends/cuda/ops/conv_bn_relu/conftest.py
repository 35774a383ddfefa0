"""The layers of these tests are small."""

from tests.expanded import expansions_of_small_images as expansions_of_small_images
