mod choice;
mod copies;
mod desk;
mod model;
mod resume;
